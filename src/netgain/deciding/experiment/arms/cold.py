"""Whether the caches of an arm are really cold after a reset: asked of its counters, with a prompt that was just answered."""

import asyncio
import time
import uuid
from collections.abc import Mapping

import msgspec

from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.launched import LaunchedServer
from netgain.deciding.experiment.arms.reset import slots_told
from netgain.deciding.experiment.conduct import Asking
from netgain.measuring.client.run import run
from netgain.measuring.observe.exposition import Snapshot
from netgain.measuring.observe.names import Engine, engine_of, figures
from netgain.measuring.observe.scrape import snapshot
from netgain.measuring.observe.window import observed
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item

PROBE_WORDS = 200
COLD_SHARE = 0.05  # of the probe's tokens: what a chat template or a first block may share with anything
WARM_SHARE = 0.25
FASTER = 0.5  # a first token that comes in less than this share of the time of new prompts was not computed anew
CONFIRMED_BY = 4  # new prompts
SETTLE_S = 2.0
OTHER_WORDS = 60
MOST_OTHERS = 64  # prompts that are sent to put the probe out of every slot
OUTLIVED = (
    "after other prompts and a further reset {cached} of {tokens} were found again, so a second cache keeps prompts that a reset "
    "does not reach (llama-server's --cache-ram, which is on unless it is told not to: start it with --cache-ram 0)"
)


class ColdCache(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found. `verified`: whether blocks begin cold; None: it cannot be told.

    The other figures are prompt tokens found again: by the same prompt at once (`again`), after the reset (`after_reset`),
    after other prompts and a further reset (`after_others`), and under another salt (`after_salt`). None: not asked or not told.
    """

    verified: bool | None
    says: str
    prompt_tokens: int | None = None
    again: int | None = None
    after_reset: int | None = None
    after_others: int | None = None
    after_salt: int | None = None

    @property
    def caveat(self) -> str | None:
        """What a result must say when cold blocks are not verified."""
        if self.verified:
            return None
        return f"Cache state {'contradicted' if self.verified is False else 'not verified'}: {self.says}."


class _Answered(msgspec.Struct, frozen=True):
    """One probe. `by_counter` and `by_usage` are cached tokens by /metrics and by the answer's own usage."""

    ok: bool
    error: str | None
    prompt_tokens: int | None
    by_counter: float | None
    by_usage: int | None
    ttft_s: float | None

    @property
    def cached(self) -> int | None:
        """None where nothing tells, and for a probe that failed: its counters did not move either."""
        if not self.ok:
            return None
        told = [value for value in (self.by_counter, self.by_usage) if value is not None]
        return round(max(told)) if told else None


async def verify_cold(arm: Arm, asking: Asking) -> ColdCache:
    """Ask one new prompt twice, reset, ask again, and where the reset did not take, under another salt. Where no salts keep
    blocks apart, once more behind other prompts: what these push out of a slot, a second cache may keep. What `reuses` is not
    reset, so there only the salt counts, or the mark in the prompt that stands for it. Call it while the arm is idle and before
    anything is measured. Never raises for what the server does."""
    nonce = uuid.uuid4().hex
    words = " ".join(("alder", "birch", "cedar", "dogwood", "elm", "fir", "ginkgo")[n % 7] for n in range(PROBE_WORDS))
    item = _probe(words, nonce)
    first = await _ask(arm.url, asking, item, f"{nonce}-a")
    again = await _ask(arm.url, asking, item, f"{nonce}-a")
    if not (first.ok and again.ok):
        return ColdCache(verified=None, says=f"the probe was not answered ({first.error or again.error})")
    if again.cached is None:
        return ColdCache(verified=None, says="neither metrics nor answers tell how many prompt tokens were found again")
    tokens = again.prompt_tokens or first.prompt_tokens
    told: dict[str, int | None] = {"prompt_tokens": tokens, "again": again.cached}
    if not tokens:
        return ColdCache(verified=None, says="the server does not tell how many tokens the probe has")
    if (first.cached or 0) > COLD_SHARE * tokens:
        says = f"{first.cached} of {tokens} tokens of a prompt that was never sent before counted as found in the cache"
        return ColdCache(verified=None, says=says, **told)
    if again.cached < WARM_SHARE * tokens:
        if _sooner(again, first) and await _sooner_than_new_ones(arm, asking, words, again):
            says = (
                f"a repeated prompt was answered in less than {FASTER:.0%} of the time of new ones while the counters tell "
                "of no token found again, so they cannot be trusted"
            )
            return ColdCache(verified=None, says=says, **told)
        says = "nothing of a repeated prompt is found again, so blocks are cold without a reset"
        return ColdCache(verified=True, says=says, **told)
    if asking.reuses:
        return await _apart(arm, asking, item, nonce, again.cached, tokens, told)
    answer = await arm.reset()
    after = await _ask(arm.url, asking, item, f"{nonce}-a")
    told["after_reset"] = after.cached
    found = f"{again.cached} of {tokens} tokens of a repeated prompt were found again"
    if after.cached is not None and after.cached <= COLD_SHARE * tokens:
        kept = arm.outlives_reset if isinstance(arm, LaunchedServer) else None  # prompts of other blocks, not this one
        says = f"{found}, {after.cached} of them after the reset ({answer})"
        if asking.salted or kept is not None:
            return ColdCache(verified=True if kept is None else None, says=says, **told)
        return await _behind_others(arm, asking, item, tokens, told, says)
    failed = f"{found}, and {_number(after.cached)} of them after the reset ({answer})"
    if not asking.salted:
        return ColdCache(verified=None if after.cached is None else False, says=failed, **told)
    salted = await _ask(arm.url, asking, item, f"{nonce}-b")
    told["after_salt"] = salted.cached
    if salted.cached is not None and salted.cached <= COLD_SHARE * tokens:
        says = f"{found}; {salted.cached} of them under another cache salt, of which every block has its own"
        return ColdCache(verified=True, says=says, **told)
    failed += f", {_number(salted.cached)} under another cache salt"
    return ColdCache(verified=None if salted.cached is None else False, says=failed, **told)


def _probe(words: str, nonce: str | None = None) -> Item:
    """A prompt that was never sent before, unless the nonce was."""
    prompt = f"{nonce or uuid.uuid4().hex} {words}"
    return Item(id="cache-probe", category="probe", max_tokens=1, prompt=prompt, temperature=0.0)


async def _sooner_than_new_ones(arm: Arm, asking: Asking, words: str, again: _Answered) -> bool:
    """Than every one of several: one by itself may be slow by chance."""
    for number in range(CONFIRMED_BY):
        if not _sooner(again, await _ask(arm.url, asking, _probe(words), f"new-{number}")):
            return False
    return True


def _sooner(again: _Answered, new: _Answered) -> bool:
    """By so much that it was not computed anew, unless the new one was slow by chance."""
    return new.ttft_s is not None and again.ttft_s is not None and again.ttft_s < FASTER * new.ttft_s


async def _apart(
    arm: Arm, asking: Asking, item: Item, nonce: str, again: int, tokens: int, told: dict[str, int | None]
) -> ColdCache:
    """Whether what was asked under one salt is not found under another."""
    salted = await _ask(arm.url, asking, item, f"{nonce}-b")
    told["after_salt"] = salted.cached
    by = "with another mark at its beginning" if asking.marks else "under another cache salt"
    says = (
        f"{again} of {tokens} tokens of a repeated prompt were found again; {_number(salted.cached)} of them {by}, as every "
        "repeat has its own"
    )
    if salted.cached is None:
        return ColdCache(verified=None, says=says, **told)
    return ColdCache(verified=salted.cached <= COLD_SHARE * tokens, says=says, **told)


async def _behind_others(
    arm: Arm, asking: Asking, item: Item, tokens: int, told: dict[str, int | None], says: str
) -> ColdCache:
    """llama.cpp saves a prompt to its second cache when another one takes its slot, which erasing slots does not undo. It tells
    nowhere whether that cache is on (/props, /slots and /metrics at b1-0c1e570), so the probe looks."""
    words = " ".join((item.prompt or "").split()[1:OTHER_WORDS])
    slots = await slots_told(arm.url, asking.options.headers)
    for _ in range(min(MOST_OTHERS, slots or 1)):
        other = await _ask(arm.url, asking, _probe(words), "")
        if not other.ok:
            return ColdCache(verified=None, says=f"{says}; other prompts were not answered ({other.error})", **told)
    await arm.reset()
    after = await _ask(arm.url, asking, item, "")
    told = {**told, "after_others": after.cached}
    if after.cached is None:
        return ColdCache(verified=None, says=f"{says}; what other prompts left behind is not known", **told)
    if after.cached > COLD_SHARE * tokens:
        return ColdCache(verified=False, says=f"{says}; {OUTLIVED.format(cached=after.cached, tokens=tokens)}", **told)
    return ColdCache(verified=True, says=f"{says}, and {after.cached} behind other prompts and a further reset", **told)


def _number(cached: int | None) -> str:
    return "an unknown number" if cached is None else str(cached)


async def _ask(url: str, asking: Asking, item: Item, salt: str) -> _Answered:
    options = asking.under(salt)
    before = await snapshot(f"{url}/metrics", options.headers, SETTLE_S)
    record = (await run(url, asking.model, asking.marked([item], salt), Closed(1), options)).records[0]
    counted = None if before is None else await _gained(url, before, options.headers)
    server = record.server
    return _Answered(
        ok=record.ok,
        error=record.error,
        prompt_tokens=server.prompt_tokens if server is not None else record.prompt_tokens,
        by_counter=counted,
        by_usage=server.cached_tokens if server is not None else record.cached_tokens,
        ttft_s=record.ttft_s if record.ok else None,
    )


async def _gained(url: str, before: Snapshot, headers: Mapping[str, str]) -> float | None:
    """Cached tokens that the counters gained since `before`, once they know of the answer: some lag behind it."""
    until_s = time.monotonic() + SETTLE_S
    while True:
        after = await snapshot(f"{url}/metrics", headers, SETTLE_S)
        window = None if after is None else observed((before, after))
        engine: Engine | None = None if after is None else engine_of(set(after.families))
        if window is None or engine is None:
            return None
        found = figures(window, engine)
        output = found["output_tokens"].gained
        if output is None or output >= 1.0 or time.monotonic() > until_s:
            return found["cached_tokens"].gained
        await asyncio.sleep(0.05)
