"""Fetch or compute: chunks of a prompt that are not in memory, each weighed by itself, with the rule that prefixes have."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from netgain.cost.link import LinkEstimate, LinkFit
from netgain.cost.loading import GROUP_BLOCKS, Choice, Why
from netgain.ledger.records import BlendCounts
from netgain.serving.tiers.kv_store import Located

FETCH_S = 2.0  # no prompt waits longer for its chunks
LEAST_WAIT_S = 0.02  # no fetch is given up before

Seconds = Callable[[int, int], float | None]


class Missing(msgspec.Struct, frozen=True):
    """A chunk that is not in memory, which takes so many bytes in tiers."""

    tokens: int
    bytes: int


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided for one prompt, and what came of it; `why` is one of cost.loading.Why, or "no_answer". `warm_s` and
    `full_s` are predicted for what was decided and for computing every chunk that was missing (None: not known). After the
    question, which took `lookup_s`, `took_s` went by until what was wanted had come, or was given up. `left` chunks were in a
    tier and predicted to be sooner computed."""

    why: str
    wanted: int = 0
    came: int = 0
    left: int = 0
    warm_s: float | None = None
    full_s: float | None = None
    took_s: float = 0.0
    lookup_s: float = 0.0


class ChunkChoice:
    """`policy` is that of TieringOptions. What computing a chunk by itself takes is learnt from those that were; before the
    first, `prefill_s(start, end)` stands in, seconds to compute a prompt's tokens from one position to another."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.prefill_s: Seconds = lambda start, end: None
        self._alone = LinkEstimate()  # of tokens

    def computed(self, tokens: int, seconds: float) -> None:
        """So many tokens of a chunk were computed by themselves."""
        if tokens:
            self._alone.add(tokens, seconds)

    def alone_s(self, tokens: int) -> float | None:
        """To compute a chunk by itself."""
        line = self._alone.fit()
        known_s = None if line is None else line.predict_s(tokens)
        return self.prefill_s(0, tokens) if known_s is None else known_s

    def choose(
        self,
        missing: Sequence[Missing],
        places: Sequence[int | None],
        links: Sequence[LinkFit | None],
        learning: Callable[[int], bool] = lambda tier: False,
    ) -> list[Choice]:
        """For each chunk; one with `blocks` 1 is to be fetched. `places` and `links` as in kv_store.Located; of a tier whose cost
        another prompt is `learning` now nothing is."""
        alone_s = [self.alone_s(one.tokens) for one in missing]
        choices = [Choice(0, one_s, one_s, Why.NOTHING_FOUND) for one_s in alone_s]
        by_tier: dict[int, list[int]] = {}
        for number, place in enumerate(places):
            if place is not None:
                by_tier.setdefault(place, []).append(number)
        for tier, numbers in by_tier.items():
            why, fetched = Why.ALWAYS, dict[int, float | None].fromkeys(numbers)
            if self.policy != "always":
                why, fetched = self._of_tier({n: (missing[n].bytes, alone_s[n]) for n in numbers}, links[tier])
                if why is Why.LEARN and learning(tier):
                    why, fetched = Why.LEARNING, {}
            for number in numbers:
                if number in fetched:
                    choices[number] = Choice(1, fetched[number], alone_s[number], why)
                else:
                    left = Why.COMPUTE if why is Why.LOAD else why
                    choices[number] = Choice(0, alone_s[number], alone_s[number], left)
        return choices

    def _of_tier(
        self, chunks: Mapping[int, tuple[int, float | None]], link: LinkFit | None
    ) -> tuple[Why, dict[int, float | None]]:
        """What is worth fetching of the chunks (bytes, seconds to compute) that one tier has, with the seconds that takes: they
        come together, so each exchange's latency is shared."""
        rate = None if link is None else link.bytes_per_s
        if link is None or rate is None:
            return Why.LEARN, dict.fromkeys(chunks)
        known = {number: alone_s for number, (_, alone_s) in chunks.items() if alone_s is not None}
        if len(known) < len(chunks):
            return Why.NO_CURVE, dict.fromkeys(chunks)
        moved_s = {number: size / rate for number, (size, _) in chunks.items()}
        worth = [number for number in chunks if moved_s[number] < known[number]]
        latency_s = link.latency_s * -(-len(worth) // GROUP_BLOCKS)
        if sum(moved_s[number] for number in worth) + latency_s >= sum(known[number] for number in worth):
            return Why.COMPUTE, {}
        return Why.LOAD, {number: moved_s[number] + latency_s / len(worth) for number in worth}

    def bound_s(self, choices: Sequence[Choice]) -> float:
        """Seconds to wait for what is wanted: with the measured policy no longer than computing it takes, or three times what was
        predicted; a quarter where nothing could be."""
        wanted = [choice for choice in choices if choice.blocks]
        full_s, warm_s = total(choice.full_s for choice in wanted), total(choice.warm_s for choice in wanted)
        if self.policy != "measured" or full_s is None:
            return FETCH_S
        return min(FETCH_S, max(LEAST_WAIT_S, full_s / 4 if warm_s is None else min(full_s, 3.0 * warm_s)))


def decided(choices: Sequence[Choice], came: int, took_s: float, lookup_s: float) -> Fetched:
    """For the record of a request: the reason of the first chunk that is to be fetched, or else of one that a tier has."""
    wanted = [choice for choice in choices if choice.blocks]
    left = sum(choice.why is Why.COMPUTE for choice in choices)
    why = wanted[0].why if wanted else Why.COMPUTE if left else Why.NOTHING_FOUND
    return Fetched(
        why=why.value,
        wanted=len(wanted),
        came=came,
        left=left,
        warm_s=total(choice.warm_s for choice in choices),
        full_s=total(choice.full_s for choice in choices),
        took_s=took_s,
        lookup_s=lookup_s,
    )


def slow_links(choices: Sequence[Choice], located: Located) -> dict[int, int]:
    """A chunk, by its number, for each tier from which none was worth fetching."""
    used = {place for choice, place in zip(choices, located.places, strict=True) if choice.blocks}
    return {
        place: number
        for number, (choice, place) in enumerate(zip(choices, located.places, strict=True))
        if place is not None and place not in used and choice.why is Why.COMPUTE
    }


def with_fetched(counts: BlendCounts, fetched: Fetched) -> BlendCounts:
    """Beside what was decided about fetching before the prompt was queued."""
    return msgspec.structs.replace(
        counts,
        fetch=fetched.why,
        chunks_wanted=fetched.wanted,
        chunks_fetched=fetched.came,
        fetch_s=fetched.took_s,
        fetch_lookup_s=fetched.lookup_s,
        fetch_warm_s=fetched.warm_s,
        fetch_full_s=fetched.full_s,
    )


def total(seconds: Iterable[float | None]) -> float | None:
    """None where one of them is not known."""
    every = list(seconds)
    known = [one for one in every if one is not None]
    return sum(known) if len(known) == len(every) else None
