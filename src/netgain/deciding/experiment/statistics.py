"""Intervals and tests for a paired experiment in which prompts measured together share their noise.

Requests of one block are correlated, so what is resampled is the group of prompts, never the single request
(T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013: repeat where the variance arises).
"""

import itertools
import math

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit  # scipy.stats has the same, and takes a second to import

from netgain.deciding.experiment.observation import Pairs

RESAMPLES = 2000
EXACT_GROUPS = 12  # up to here all 2**groups sign patterns are enumerated, above they are drawn
CONFIDENCE = 0.95
ALPHA = 0.025  # one side of a 95 % interval; an exact test must agree with the interval


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio baseline / candidate of times with its interval: above 1 the candidate is faster. None = not enough data.

    `p_faster` and `p_slower` are exact one-sided sign-flip tests over groups against "no difference".
    """

    ratio: float
    low: float | None
    high: float | None
    groups: int
    pairs: int
    p_faster: float
    p_slower: float


def median_effect(pairs: Pairs, seed: int) -> Effect | None:
    """The median over prompts of the paired ratio. None without pairs."""
    if not len(pairs):
        return None
    logs = pairs.log_ratios
    point = float(np.median(logs))
    weights = _group_weights(pairs.groups, seed)
    spread = None if weights is None else weighted_medians(logs, weights[:, _positions(pairs.groups)])
    return _effect(point, spread, logs, pairs)


def mean_effect(pairs: Pairs, seed: int) -> Effect | None:
    """Total baseline time over total candidate time, of the prompts that succeeded in both arms. None without any."""
    kept = np.isfinite(pairs.baseline) & np.isfinite(pairs.candidate)
    if not kept.any():
        return None
    baseline, candidate, groups = pairs.baseline[kept], pairs.candidate[kept], pairs.groups[kept]
    point = math.log(float(baseline.sum()) / float(candidate.sum()))
    weights = _group_weights(groups, seed)
    spread = None
    if weights is not None:
        by_pair = weights[:, _positions(groups)]
        spread = np.log(by_pair @ baseline) - np.log(by_pair @ candidate)
    return _effect(point, spread, np.log(baseline) - np.log(candidate), pairs, groups)


def _effect(
    point: float,
    spread: NDArray[np.float64] | None,
    logs: NDArray[np.float64],
    pairs: Pairs,
    groups: NDArray[np.int64] | None = None,
) -> Effect:
    groups = pairs.groups if groups is None else groups
    centres = group_medians(logs, groups)
    low, high = (None, None) if spread is None else _interval(point, spread, len(centres))
    return Effect(
        ratio=_exp(point),
        low=None if low is None else _exp(low),
        high=None if high is None else _exp(high),
        groups=len(centres),
        pairs=len(logs),
        p_faster=sign_flip_p(centres),
        p_slower=sign_flip_p(-centres),
    )


def _exp(value: float) -> float:
    return math.exp(max(-60.0, min(60.0, value)))


def _positions(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The index of each pair's group among the distinct groups."""
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _group_weights(groups: NDArray[np.int64], seed: int) -> NDArray[np.float64] | None:
    """How often each group occurs in each resample, [resamples, groups]; None with fewer than two groups."""
    count = len(np.unique(groups))
    if count < 2:
        return None
    draws = np.random.default_rng(seed).multinomial(count, [1.0 / count] * count, size=RESAMPLES)
    return draws.astype(np.float64)


def weighted_medians(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of `values` [n] repeated `weights[i]` [n] times, for each row of integer weights."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    cumulative = np.cumsum(weights[:, order], axis=1)
    half = cumulative[:, -1:] / 2.0
    lower = np.argmax(cumulative >= half, axis=1)
    upper = np.argmax(cumulative > half, axis=1)
    result: NDArray[np.float64] = (ordered[lower] + ordered[upper]) / 2.0
    return result


def _interval(point: float, spread: NDArray[np.float64], groups: int) -> tuple[float, float]:
    """Percentiles of the resampled statistic, widened for few groups.

    With n groups the bootstrap's variance is short by (n-1)/n and its tails are the normal's where Student's t with n-1
    degrees of freedom would be right; both factors widen the distance from the point estimate.
    """
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(spread, [tail, 1.0 - tail])
    widen = math.sqrt(groups / (groups - 1)) * float(stdtrit(groups - 1, 1.0 - tail) / ndtri(1.0 - tail))
    return point - widen * max(0.0, point - float(low)), point + widen * max(0.0, float(high) - point)


def group_medians(logs: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number per group: the median of its pairs."""
    return np.array([float(np.median(logs[groups == group])) for group in np.unique(groups)], dtype=np.float64)


def sign_flip_p(centres: NDArray[np.float64]) -> float:
    """Probability, if each group's difference were as likely negative as positive, of a mean at least this high.

    Exact up to EXACT_GROUPS groups, drawn with a fixed seed above. With n groups it cannot fall below 2**-n, so a few
    groups never reach significance however large the effect.
    """
    if not len(centres):
        return 1.0
    signs = _signs(len(centres))
    observed = float(centres.sum())
    return float(np.mean(signs @ centres >= observed - 1e-12 * max(1.0, abs(observed))))


def _signs(count: int) -> NDArray[np.float64]:
    if count <= EXACT_GROUPS:
        return np.array(list(itertools.product((1.0, -1.0), repeat=count)), dtype=np.float64)
    drawn = np.random.default_rng(count).choice((1.0, -1.0), size=(2**EXACT_GROUPS, count))
    drawn[0] = 1.0  # the observed pattern belongs to the set, else p could be 0
    return np.asarray(drawn, dtype=np.float64)


def noise_floor(logs: NDArray[np.float64], groups: NDArray[np.int64]) -> float | None:
    """The log ratio that comparing the baseline with itself reaches by chance: `logs` are A/A differences per prompt.

    Each group's differences are relabelled (sign flipped) in all ways; returned is the 95 % quantile of the absolute
    median. None with fewer than two groups.
    """
    distinct = np.unique(groups)
    if len(distinct) < 2:
        return None
    flips = _signs(len(distinct))[:, _positions(groups)]
    medians = np.median(flips * logs, axis=1)
    return float(np.quantile(np.abs(medians), CONFIDENCE))
