"""How many requests met the promised service level, before and after, with intervals that respect shared noise."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.resampling import Floats, resampling
from netgain.deciding.experiment.statistics import CONFIDENCE, t_quantile
from netgain.measuring.workload.slo import SLO


class Attained(msgspec.Struct, frozen=True, kw_only=True):
    """Share of requests that met every target, with its interval. `requests`: those that could be judged."""

    share: float
    low: float
    high: float
    requests: int


class SloOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is the SLO. `gained` is candidate - baseline, in shares of requests, with its interval (None: too few units)."""

    text: str
    baseline: Attained | None
    candidate: Attained | None
    gained: float | None
    gained_low: float | None
    gained_high: float | None


def slo_outcome(
    observations: Sequence[Observation], slo: SLO, confidence: float = CONFIDENCE, seed: int = 0
) -> SloOutcome:
    """Requests of one block share their fate, so the interval is as wide as shares differ between units (starts or groups)."""
    judged = [
        (seen, met)
        for seen in observations
        if seen.arm in (BASELINE, CANDIDATE) and (met := slo.met_by(seen.record)) is not None
    ]
    text = ",".join(str(target) for target in slo.targets)
    shares: dict[str, Attained | None] = {}
    spreads: dict[str, Floats] = {}
    drawn = None
    if judged:
        starts = np.array([seen.start for seen, _ in judged], dtype=np.int64)
        groups = np.array([seen.group for seen, _ in judged], dtype=np.int64)
        drawn = resampling(starts, groups, seed)
    for arm in (BASELINE, CANDIDATE):
        own = np.array([seen.arm == arm for seen, _ in judged], dtype=bool)
        passes = np.array([met for _, met in judged], dtype=np.float64)
        if not own.any():
            shares[arm] = None
            continue
        share, error = float(passes[own].mean()), None
        if drawn is not None:
            passed = drawn.times @ np.bincount(drawn.of[own], passes[own], drawn.units)
            asked = drawn.times @ np.bincount(drawn.of[own], None, drawn.units)
            spreads[arm] = passed / np.maximum(asked, 1.0)
            error = drawn.error(spreads[arm])
        shares[arm] = _attained(share, int(own.sum()), error, confidence)
    before, after = shares.get(BASELINE), shares.get(CANDIDATE)
    gained = None if before is None or after is None else after.share - before.share
    low = high = None
    if gained is not None and drawn is not None:
        half = t_quantile(confidence, drawn.freedom) * drawn.error(spreads[CANDIDATE] - spreads[BASELINE])
        low, high = max(-1.0, gained - half), min(1.0, gained + half)
    return SloOutcome(text=text, baseline=before, candidate=after, gained=gained, gained_low=low, gained_high=high)


def _attained(share: float, requests: int, error: float | None, confidence: float) -> Attained:
    """Wilson's interval, as if so many fewer requests were independent as `error` is larger than that of independent ones.

    A share of 0 or 1 shows no spread; Wilson's interval still has a width there.
    """
    independent = share * (1.0 - share) / requests
    effective = float(requests)
    if error is not None and independent > 0.0:
        effective = requests / max(1.0, error**2 / independent)
    z2 = t_quantile(confidence, 10_000) ** 2
    middle = (share + z2 / (2.0 * effective)) / (1.0 + z2 / effective)
    half = math.sqrt(z2 * (share * (1.0 - share) / effective + z2 / (4.0 * effective**2))) / (1.0 + z2 / effective)
    return Attained(share=share, low=max(0.0, middle - half), high=min(1.0, middle + half), requests=requests)
