"""Means over positions of texts, with intervals: positions of one text share its difficulty, so whole texts are what varies."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with its interval; no interval (None) from a single text. `texts` vary, `positions` were averaged."""

    value: float
    low: float | None
    high: float | None
    texts: int
    positions: int


def mean_over_texts(values: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Estimate | None:
    """The mean over all positions; None without any. `values` holds those of each text.

    A ratio of sums over texts, its error by linearisation (W. Cochran, "Sampling Techniques", 1977, section 6.4) with
    Student's t for the number of texts.
    """
    kept = [np.asarray(text, dtype=np.float64) for text in values if len(text)]
    if not kept:
        return None
    sums, counts = np.array([text.sum() for text in kept]), np.array([len(text) for text in kept])
    total, texts = int(counts.sum()), len(kept)
    value = float(sums.sum()) / total
    low = high = None
    if texts > 1 and math.isfinite(value):
        residuals = sums - value * counts
        error = math.sqrt(texts / (texts - 1) * float(residuals @ residuals)) / total
        half = float(stdtrit(texts - 1, 0.5 + confidence / 2.0)) * error
        low, high = value - half, value + half
    return Estimate(value=value, low=low, high=high, texts=texts, positions=total)


def exponential(estimate: Estimate) -> Estimate:
    """The same of the exponential of the mean: a perplexity of a mean log-probability, a ratio of a mean log ratio."""
    return msgspec.structs.replace(
        estimate,
        value=_exp(estimate.value),
        low=None if estimate.low is None else _exp(estimate.low),
        high=None if estimate.high is None else _exp(estimate.high),
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf
