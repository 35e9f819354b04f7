"""Effects of a paired experiment, each a ratio of times with its interval and its one-sided tests."""

import math

import msgspec
import numpy as np
from scipy.special import stdtr, stdtrit  # scipy.stats has the same, and takes a second to import

from netgain.deciding.experiment.observation import Pairs
from netgain.deciding.experiment.resampling import Floats, Resampling, Unit, resampling

CONFIDENCE = 0.95


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio baseline / candidate of times with its interval: above 1 the candidate is faster. None = not enough data.

    `units` of kind `unit` were resampled; `error` is the standard error of log(ratio), with `freedom` degrees of freedom.
    `p_faster` and `p_slower` are one-sided, against "no difference".
    """

    ratio: float
    low: float | None
    high: float | None
    units: int
    unit: Unit
    pairs: int
    error: float | None
    freedom: int
    p_faster: float
    p_slower: float

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends; None where there is no interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def median_effect(pairs: Pairs, seed: int, confidence: float = CONFIDENCE) -> Effect | None:
    """The median over prompts of the paired ratio; with two orders of starting, the mean of the two. None without pairs."""
    if not len(pairs):
        return None
    logs = pairs.log_ratios
    drawn = resampling(pairs.starts, pairs.groups, seed)
    if drawn is None:
        return effect(float(np.median(logs)), None, None, len(logs), confidence)
    point = drawn.medians(logs, np.ones((1, drawn.units)))[0]
    return effect(float(point), drawn.medians(logs, drawn.times), drawn, len(logs), confidence)


def mean_effect(pairs: Pairs, seed: int, confidence: float = CONFIDENCE) -> Effect | None:
    """Total baseline time over total candidate time, of the prompts that succeeded in both arms. None without any."""
    kept = np.isfinite(pairs.baseline) & np.isfinite(pairs.candidate)
    if not kept.any():
        return None
    baseline, candidate = pairs.baseline[kept], pairs.candidate[kept]
    point = math.log(float(baseline.sum()) / float(candidate.sum()))
    drawn = resampling(pairs.starts[kept], pairs.groups[kept], seed)
    spread = None
    if drawn is not None:
        sums = [drawn.times @ np.bincount(drawn.of, values, drawn.units) for values in (baseline, candidate)]
        spread = np.log(sums[0]) - np.log(sums[1])
    return effect(point, spread, drawn, len(baseline), confidence)


def effect(
    point: float, spread: Floats | None, drawn: Resampling | None, pairs: int, confidence: float = CONFIDENCE
) -> Effect:
    """The interval around a log ratio: Student's t times the resampled standard error."""
    if spread is None or drawn is None:
        return Effect(
            ratio=_exp(point),
            low=None,
            high=None,
            units=min(1, pairs),
            unit="group",
            pairs=pairs,
            error=None,
            freedom=0,
            p_faster=1.0,
            p_slower=1.0,
        )
    error = drawn.error(spread)
    half = t_quantile(confidence, drawn.freedom) * error
    return Effect(
        ratio=_exp(point),
        low=_exp(point - half),
        high=_exp(point + half),
        units=drawn.units,
        unit=drawn.unit,
        pairs=pairs,
        error=error,
        freedom=drawn.freedom,
        p_faster=p_above(point, error, drawn.freedom),
        p_slower=p_above(-point, error, drawn.freedom),
    )


def t_quantile(confidence: float, freedom: int) -> float:
    """Half the width of a two-sided interval in standard errors."""
    return float(stdtrit(freedom, 0.5 + confidence / 2.0))


def p_above(value: float, error: float, freedom: int) -> float:
    """One-sided probability of an estimate at least this far above zero if the truth were zero."""
    if error <= 0.0:
        return 0.0 if value > 0.0 else 1.0
    return float(stdtr(freedom, -value / error))


def _exp(value: float) -> float:
    return math.exp(max(-60.0, min(60.0, value)))
