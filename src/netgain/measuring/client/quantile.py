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


def quantile_interval(values: Sequence[float], share: float, level: float = 0.95) -> tuple[float, float] | None:
    """A confidence interval of the quantile from order statistics; assumes independent samples and no distribution.

    The interval covers the true quantile with probability at least `level`. None when there are too few samples for
    any interval of that level.
    """
    count, tail = len(values), (1.0 - level) / 2.0
    if not count:
        return None
    ordered = sorted(values)
    # The number of samples below the true quantile is binomial(count, share). below[k]: chance of at most k - 1.
    below = _binomial_distribution(count, share)
    low = next((rank for rank in range(_rank(share, count), 0, -1) if below[rank] <= tail), None)
    high = next((rank for rank in range(_rank(share, count), count + 1) if 1.0 - below[rank] <= tail), None)
    return None if low is None or high is None else (ordered[low - 1], ordered[high - 1])


def _binomial_distribution(count: int, share: float) -> list[float]:
    """Chance of fewer than k hits among `count`, for k from 0 to count + 1."""
    log_hit, log_miss, log_all = math.log(share), math.log1p(-share), math.lgamma(count + 1)
    sums = [0.0]
    for hits in range(count + 1):
        ways = log_all - math.lgamma(hits + 1) - math.lgamma(count - hits + 1)
        sums.append(sums[-1] + math.exp(ways + hits * log_hit + (count - hits) * log_miss))
    return sums


def _rank(share: float, count: int) -> int:
    return min(count, max(1, math.ceil(share * count - 1e-9)))
