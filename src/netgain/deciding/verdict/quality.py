"""What the candidate's answers are worth beside the baseline's, in the form in which a verdict holds it.

Token-identical techniques are judged by `identity` alone: prompts whose answers were compared, and those that differed.
Lossy ones by the measured differences, each against a limit that was fixed before; what was not measured is null and
holds no promise.
"""

from typing import Literal

import msgspec

from netgain.deciding.experiment.identity import Identity

QualityState = Literal["held", "not shown", "breached"]


class PerplexityDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Perplexity of the same texts under both models. `ratio`: candidate / baseline, above 1 is worse; `low`, `high` bound it."""

    baseline: float | None
    candidate: float | None
    ratio: float | None
    low: float | None = None
    high: float | None = None
    texts: int | None = None
    positions: int | None = None
    limit: float | None = None
    state: QualityState = "not shown"


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """Kullback-Leibler divergence of the candidate's next-token distribution from the baseline's, in nats per position.

    `same_first`: share of positions where both would choose the same token."""

    mean: float | None
    low: float | None = None
    high: float | None = None
    p99: float | None = None
    same_first: float | None = None
    positions: int | None = None
    limit: float | None = None
    state: QualityState = "not shown"


class TaskScore(msgspec.Struct, frozen=True, kw_only=True):
    """A task set scored in both arms, from 0 to 1. `difference`: candidate - baseline, below 0 is worse; `low`, `high` bound it.

    `limit`: the largest fall that is allowed, a negative number or 0."""

    name: str
    scorer: str | None = None
    baseline: float | None
    candidate: float | None
    difference: float | None
    low: float | None = None
    high: float | None = None
    items: int | None = None
    limit: float | None = None
    state: QualityState = "not shown"


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is the worst of those parts that the technique is judged by; None: nothing was judged. `says`: in a sentence."""

    state: QualityState | None = None
    says: str | None = None
    identity: Identity | None = None
    perplexity: PerplexityDelta | None = None
    divergence: Divergence | None = None
    tasks: tuple[TaskScore, ...] = ()
