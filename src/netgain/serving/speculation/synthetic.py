"""Acceptance by given rates instead of by the model: shows what speculation would cost and bring, with text that means nothing.

For mapping where drafts of a given quality break even on this machine. The output is not the model's: whoever builds this says so
in the name that is served.
"""

from collections.abc import Sequence

from netgain.serving.engine.protocols import Ask, Draft, Noise, Target
from netgain.serving.engine.request import Request

NAME_SUFFIX = "-synthetic-acceptance"


class SyntheticProposer:
    """Always `k` drafts, which cost nothing: the last token again."""

    def __init__(self, k: int) -> None:
        self.k = k

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft((ask.tokens[-1],) * min(self.k, ask.limit)) for ask in asks]

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        """Nothing is kept."""


class SyntheticVerifier:
    """Keeps the first i drafts with probability at least `rates[i - 1]`, whatever they say, then adds the target's choice.
    `rates` are unconditional survival by position, from 0 to 1, never rising; beyond their end nothing survives."""

    needs_laws = False
    token_identical = False

    def __init__(self, rates: Sequence[float]) -> None:
        if not rates or not all(0 <= rate <= before <= 1 for before, rate in zip((1.0, *rates), rates, strict=False)):
            raise ValueError(f"rates fall from at most 1 to at least 0, one or more of them; got {list(rates)}")
        self._rates = tuple(rates)

    def verify(self, draft: Draft, target: Target, noise: Noise, position: int) -> tuple[int, ...]:
        kept = 0
        before: float = 1  # whole, so that rates may be fractions
        for rate in self._rates[: len(draft.tokens)]:
            if rate <= 0 or (rate < before and not noise.accept(position + kept, rate / before)):
                break
            kept, before = kept + 1, rate
        # a rejected draft is followed by another token; the filler may happen to be what the target chose
        return (*draft.tokens[:kept], target.choices[kept])
