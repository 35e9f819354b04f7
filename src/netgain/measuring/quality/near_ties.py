"""Where two servers' greedy answers part, and whether one of them had nearly chosen the other's token itself.

Two engines that compute the same model round differently, so an answer may part where two tokens are almost equally likely; that
says little. A part at a position with a clear choice says that the models differ.
"""

import math
from collections.abc import Sequence

import msgspec

from netgain.measuring.quality.identity import compare_outputs
from netgain.measuring.quality.laws import Law

NEAR_TIE = 0.1  # nats between the two tokens: odds of at most 1.1 to 1


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt whose answers differ from `position` (0 = the first token) on. `gap` is how much likelier a server found its
    own token than the other's, in nats: the smaller of both servers' gaps, None when neither shows the other's token or one
    answer ended there. `near_tie`: the gap is at most NEAR_TIE; None when it is not known."""

    prompt: str
    position: int
    baseline: str | None
    candidate: str | None
    gap: float | None

    @property
    def near_tie(self) -> bool | None:
        return None if self.gap is None else self.gap <= NEAR_TIE


class Sameness(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy answers of two servers to the same prompts. `tokens` were compared up to each first difference."""

    prompts: int
    tokens: int
    partings: tuple[Parting, ...]

    @property
    def near_ties(self) -> int:
        return sum(parting.near_tie is True for parting in self.partings)


def compare_answers(answers: Sequence[tuple[str, Sequence[Law], Sequence[Law]]]) -> Sameness | None:
    """`answers`: (name of the prompt, the baseline's laws of its own answer, the candidate's). None without any."""
    if not answers:
        return None
    partings: list[Parting] = []
    tokens = 0
    for prompt, left, right in answers:
        found = compare_outputs([law.token for law in left], [law.token for law in right])
        if found.first_difference is None:
            tokens += found.left_tokens
            continue
        place = found.first_difference
        tokens += place + 1
        ours = left[place] if place < len(left) else None
        theirs = right[place] if place < len(right) else None
        partings.append(
            Parting(
                prompt=prompt,
                position=place,
                baseline=None if ours is None else ours.token,
                candidate=None if theirs is None else theirs.token,
                gap=_gap(ours, theirs),
            )
        )
    return Sameness(prompts=len(answers), tokens=tokens, partings=tuple(partings))


def _gap(ours: Law | None, theirs: Law | None) -> float | None:
    """By the law of either server, whichever shows both tokens; the smaller where both do."""
    if ours is None or theirs is None:  # one answer ended: the ending token is not told
        return None
    gaps = []
    if theirs.token in ours.top:
        gaps.append(ours.logprob - ours.top[theirs.token])
    if ours.token in theirs.top:
        gaps.append(theirs.logprob - theirs.top[ours.token])
    return max(0.0, min(gaps)) if gaps and all(map(math.isfinite, gaps)) else None
