"""Percentiles that are always one of the samples, so that failures can count as infinite and no value is invented."""

import math
from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float | None:
    """Nearest rank: the smallest sample with at least `share` of all samples at or below it. None without samples.

    The p99 of three samples is the largest of them. Infinite samples are allowed.
    """
    if not values:
        return None
    return sorted(values)[_rank(share, len(values)) - 1]


def weighted_quantile(pairs: Sequence[tuple[float, float]], share: float) -> float | None:
    """As `quantile`, for (value, weight) pairs: the weights take the place of counts."""
    ordered = sorted(pair for pair in pairs if pair[1] > 0)
    aim = share * math.fsum(weight for _, weight in ordered) * (1 - 1e-12)
    passed = 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= aim:
            return value
    return ordered[-1][0] if ordered else None


def is_thin(count: int, share: float) -> bool:
    """Whether so few samples lie beyond the quantile that it is simply the most extreme one: p99 needs 100."""
    return count * min(share, 1.0 - share) < 1.0 - 1e-9


def _rank(share: float, count: int) -> int:
    return min(count, max(1, math.ceil(share * count - 1e-9)))
