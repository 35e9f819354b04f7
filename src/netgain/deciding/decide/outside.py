"""What an engine that is not netgain's does not tell, found out from outside: token ids, and what a wider step costs."""

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.conduct import Asking
from netgain.ledger.records import DraftCounts, RequestRecord
from netgain.ledger.stage import Stage
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.client.run import run
from netgain.measuring.observe.names import Engine
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item

WIDTHS = (1, 5, 9, 3, 2, 4, 6)  # those that span most come first
BUDGET_S = 60.0
STEPS = 16
REPEATS = 2
ASK_S = 20.0
BASIS = "measured from outside (a step of several sequences, taken for one of as many tokens)"


async def step_cost_outside(
    url: str,
    engine: Engine,
    asking: Asking,
    batch: int,
    context: int,
    budget_s: float = BUDGET_S,
    widths: Sequence[int] = WIDTHS,
) -> tuple[StepCost | None, str | None]:
    """What a step of `batch` times 1, 2, 3... tokens (`widths`) costs behind about `context` tokens, or why it is not known: so
    many requests decode together, and the time between their tokens is taken. Verifying several tokens of one sequence reads less
    KV than that. Points tell the context as the server counts it, where it does.

    A server that runs fewer requests at once makes the others wait, which shows in their first token: such widths are left out.
    After `budget_s` no further width begins, once there are two: what lies between them is then taken in proportion.
    """
    began_s = time.monotonic()
    too_wide = max(widths) + 1
    points: list[StepPoint] = []
    words = " ".join(f"alder {n}" for n in range(max(8, context // 4)))
    for width in widths:
        if width >= too_wide:
            continue
        if len(points) >= 2 and time.monotonic() - began_s >= budget_s:
            break
        together = batch * width
        gaps: list[float] = []
        for repeat in range(REPEATS):
            items = [
                Item(
                    id=f"step-{n}",
                    category="step",
                    max_tokens=STEPS,
                    prompt=f"{width} {repeat} {n} {words}",
                    ignore_eos=engine in ("vllm", "sglang", "llama.cpp"),
                )
                for n in range(together)
            ]
            done = await run(url, asking.model, items, Closed(together), asking.under(f"step-{time.time_ns()}"))
            good = [record for record in done.records if record.ok and record.tpot_s]
            if len(good) < together or not _overlapped(good):
                too_wide = width
                break
            started_s = max(record.first_token_s or 0.0 for record in good)
            gaps += [gap for record in good for gap in _gaps_after(record, started_s)]
        else:
            if gaps:
                if not points:
                    context = _counted(good) or context
                points.append(
                    StepPoint(
                        batch=batch, tokens=width, context=context, seconds=statistics.median(gaps), repeats=len(gaps)
                    )
                )
    if len(points) < 2:
        return None, f"steps of {batch} and {2 * batch} requests could not be measured from outside"
    return StepCost(points=tuple(points), subject={"engine": engine, "how": BASIS}), None


def _counted(records: Sequence[ClientRecord]) -> int | None:
    """Tokens of their prompts, which differ by a few; None where the server does not tell."""
    counts = [record.prompt_tokens for record in records if record.prompt_tokens]
    return round(statistics.median(counts)) if counts else None


def _overlapped(records: Sequence[ClientRecord]) -> bool:
    """Whether all decoded at the same time for a while."""
    return max(record.first_token_s or 0.0 for record in records) < min(record.finished_s for record in records)


def _gaps_after(record: ClientRecord, since_s: float) -> list[float]:
    """Seconds per token between arrivals. What a server with drafts commits in one step arrives in one piece, as one arrival."""
    arrived: dict[float, int] = {}
    for at_s, tokens in zip(record.chunk_times_s, record.chunk_tokens, strict=False):
        arrived[at_s] = arrived.get(at_s, 0) + (tokens or 0)
    return [
        (later - earlier) / arrived[later]
        for earlier, later in itertools.pairwise(arrived)
        if earlier >= since_s and arrived[later]
    ]


async def with_ids(
    arm: Arm, engine: Engine, model: str, records: Sequence[ClientRecord], items: Mapping[str, Item]
) -> tuple[ClientRecord, ...]:
    """The same records with an account in the form of netgain's, so that they can be replayed: token ids by the engine's own
    tokenizer, times by the client. Records whose ids cannot be had are as they were."""
    found: list[ClientRecord] = []
    url = arm.url
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_S), headers=arm.headers) as session:
        for record in records:
            item = items.get(record.item_id)
            prompt = None if item is None else await prompt_ids(session, url, engine, model, item)
            answer = (
                await token_ids(session, url, engine, model, record.text)
                if prompt is not None and record.text
                else None
            )
            known = prompt is not None and answer is not None
            found.append(
                msgspec.structs.replace(record, server=_account(record, prompt or (), answer or ()))
                if known
                else record
            )
    return tuple(found)


def _account(record: ClientRecord, prompt: tuple[int, ...], answer: tuple[int, ...]) -> RequestRecord:
    first_s = (record.first_token_s or record.finished_s) - record.sent_s
    decode_s = record.finished_s - record.sent_s - first_s
    return RequestRecord(
        request_id=record.item_id,
        choice=0,
        model="",
        received_s=record.sent_s,
        first_token_s=record.first_token_s,
        finished_s=record.finished_s,
        finish_reason=record.finish_reason or "stop",
        prompt_tokens=len(prompt),
        cached_tokens=record.cached_tokens or 0,
        output_tokens=len(answer),
        preemptions=0,
        stages={Stage.PREFILL: first_s, Stage.DECODE: decode_s},
        ttft_stages={Stage.PREFILL: first_s},
        drafts=DraftCounts(),
        prompt_ids=prompt,
        output_ids=answer,
    )


async def prompt_ids(
    session: aiohttp.ClientSession, url: str, engine: Engine, model: str, item: Item
) -> tuple[int, ...] | None:
    """What the engine makes of a whole prompt, chat template and start tokens included; None where it does not say."""
    if item.prompt is not None:
        return await token_ids(session, url, engine, model, item.prompt, special=True)
    messages = msgspec.to_builtins(item.messages)
    if engine == "llama.cpp":
        text = (await _post(session, f"{url}/apply-template", {"messages": messages})).get("prompt")
        return await token_ids(session, url, engine, model, text, special=True) if isinstance(text, str) else None
    body = {"model": model, "messages": messages, "add_generation_prompt": True}
    return _tokens(await _post(session, f"{url}/tokenize", body))


async def token_ids(
    session: aiohttp.ClientSession, url: str, engine: Engine, model: str, text: str, special: bool = False
) -> tuple[int, ...] | None:
    """What the engine's tokenizer makes of a text, without its start tokens unless they are asked for; None where it does not
    say."""
    body: dict[str, Any] = {"model": model, "prompt": text, "add_special_tokens": special}
    if engine == "llama.cpp":
        body = {"content": text, "add_special": special, "parse_special": special}
    return _tokens(await _post(session, f"{url}/tokenize", body))


def _tokens(told: dict[str, Any]) -> tuple[int, ...] | None:
    tokens = told.get("tokens")
    return tuple(tokens) if isinstance(tokens, list) and all(isinstance(token, int) for token in tokens) else None


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        async with session.post(url, json=body) as response:
            told = msgspec.json.decode(await response.read()) if response.status == 200 else None
    except (TimeoutError, aiohttp.ClientError, OSError, msgspec.DecodeError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}
