"""Confidence intervals of percentiles and shares that hold for requests as servers answer them: neighbours share their fate.

Requests in flight together are slow together, so n of them say less than n independent ones would. How much less is estimated
from the spread between batches of consecutive requests (batch means; C. Alexopoulos and A. Seila, "Output data analysis",
Handbook of Simulation, 1998), and the usual interval is taken for that effective number.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv, stdtrit

from netgain.measuring.client.quantile import weighted_quantile

LEVEL = 0.95
LEAST_BATCHES = 4
MOST_BATCHES = 30
_Z = 1.959964  # of LEVEL

Interval = tuple[float, float]


def effective_count(hits: NDArray[np.float64], weights: NDArray[np.float64], overlap: float) -> float | None:
    """How many independent samples the share sum(hits) / sum(weights) is worth. None: too few batches to tell.

    `hits` and `weights` [n] have one entry per request in order of time: its samples that hit, and its samples. `overlap` is
    the mean number of requests in flight: a batch is at least twice that. Never more than sum(weights).
    """
    count, total = len(hits), float(weights.sum())
    size = max(2, math.ceil(2.0 * overlap), math.ceil(count / MOST_BATCHES))
    batches = count // size
    if batches < LEAST_BATCHES or total <= 0.0:
        return None
    share = float(hits.sum()) / total
    spread = share * (1.0 - share) / total
    if spread <= 0.0:
        return float(count)  # all alike: nothing to see of any dependence, and tokens of one request are one sample
    edges = np.linspace(0, count, batches + 1).astype(np.int64)[:-1]
    residuals = np.add.reduceat(hits - share * weights, edges)
    seen = batches / (batches - 1) * float(residuals @ residuals) / total**2
    # the spread between few batches is itself uncertain: Student's t for the normal
    doubt = (float(stdtrit(batches - 1, 0.5 + LEVEL / 2.0)) / _Z) ** 2
    return total / max(1.0, seen / spread * doubt)


def share_interval(share: float, effective: float) -> Interval:
    """Clopper and Pearson's interval of a share seen in `effective` independent samples."""
    tail, hits = (1.0 - LEVEL) / 2.0, share * effective
    low = 0.0 if hits <= 0.0 else float(betaincinv(hits, effective - hits + 1.0, tail))
    high = 1.0 if hits >= effective else float(betaincinv(hits + 1.0, effective - hits, 1.0 - tail))
    return low, high


def rank_shares(share: float, effective: float) -> Interval | None:
    """Between which quantiles of the sample the true quantile lies; None when so few samples bound it on one side only.

    The number of samples below it is binomial; no distribution of the values is assumed.
    """
    count = int(effective)
    if count < 1:
        return None
    tail = (1.0 - LEVEL) / 2.0
    below = bdtr(np.arange(count, dtype=np.float64), count, share)  # below[k]: chance of at most k
    low = int(np.searchsorted(below, tail, side="right"))  # the largest rank with at most `tail` below it
    high = int(np.searchsorted(below, 1.0 - tail, side="left")) + 1
    if low < 1 or high > count:
        return None
    return (low - 1) / count, high / count


def quantile_interval(
    samples: Sequence[Sequence[tuple[float, float]]], share: float, overlap: float
) -> Interval | None:
    """Of the quantile `share` over all samples. `samples`: per request in order of time, its (value, weight) pairs, infinity for
    a failure. None with too few."""
    pairs = [pair for request in samples for pair in request]
    middle = weighted_quantile(pairs, share)
    if middle is None:
        return None
    hits = np.array([math.fsum(weight for value, weight in request if value <= middle) for request in samples])
    weights = np.array([math.fsum(weight for _, weight in request) for request in samples])
    effective = effective_count(hits, weights, overlap)
    bounds = None if effective is None else rank_shares(share, effective)
    if bounds is None:
        return None
    low, high = weighted_quantile(pairs, max(bounds[0], 1e-12)), weighted_quantile(pairs, bounds[1])
    return None if low is None or high is None else (min(low, middle), max(high, middle))
