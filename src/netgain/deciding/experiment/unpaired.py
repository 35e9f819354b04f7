"""Effects between two arms that were not asked the same prompts: medians and means of each arm, resampled apart.

The spread between prompts, which pairing takes out, stays in the interval, and prompts that are easier on one side look like
an effect of the arm.
"""

import math
from collections.abc import Iterable

import msgspec
import numpy as np

from netgain.deciding.experiment.observation import (
    BASELINE,
    CANDIDATE,
    Metric,
    Observation,
    clip_failures,
)
from netgain.deciding.experiment.resampling import Floats, Ints, resampling, weighted_medians
from netgain.deciding.experiment.statistics import CONFIDENCE, Effect, effect


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of both arms: arrays of shape [requests]; infinite where a request failed.

    `starts` is 0 for the baseline and 1 for the candidate, so that units are drawn within their arm (see `resampling`);
    `groups` are not shared between the arms.
    """

    starts: Ints
    groups: Ints
    values: Floats

    @property
    def logs(self) -> Floats:
        """Logarithms; a failure is beyond everything measured."""
        return clip_failures(np.log(np.maximum(self.values, 1e-9)))

    @property
    def complete(self) -> bool:
        """Whether both arms have a value."""
        return len(np.unique(self.starts)) == 2


def samples(observations: Iterable[Observation], metric: Metric) -> Samples:
    """All known values of both arms (unknown is not zero)."""
    found: list[tuple[int, int, float]] = []
    for seen in observations:
        value = metric(seen.record) if seen.arm in (BASELINE, CANDIDATE) else None
        if value is not None:
            found.append((int(seen.arm == CANDIDATE), seen.group, value))
    return Samples(
        starts=np.array([start for start, _, _ in found], dtype=np.int64),
        groups=np.array([group for _, group, _ in found], dtype=np.int64),
        values=np.array([value for _, _, value in found], dtype=np.float64),
    )


def median_effect_apart(found: Samples, seed: int, confidence: float = CONFIDENCE) -> Effect | None:
    """The baseline's median over the candidate's. None when an arm has no value."""
    if not found.complete:
        return None
    logs, candidate = found.logs, found.starts == 1
    point = float(np.median(logs[~candidate])) - float(np.median(logs[candidate]))
    drawn = resampling(found.starts, found.groups, seed)
    if drawn is None or drawn.layers < 2:
        return effect(point, None, None, len(logs), confidence)
    baseline_of, candidate_of = drawn.of[~candidate], drawn.of[candidate]
    spread = weighted_medians(logs[~candidate], drawn.times[:, baseline_of]) - weighted_medians(
        logs[candidate], drawn.times[:, candidate_of]
    )
    return effect(point, spread, drawn, len(logs), confidence)


def mean_effect_apart(found: Samples, seed: int, confidence: float = CONFIDENCE) -> Effect | None:
    """Mean baseline time over mean candidate time, of the requests that succeeded. None when an arm has none."""
    kept = np.isfinite(found.values)
    found = Samples(starts=found.starts[kept], groups=found.groups[kept], values=found.values[kept])
    if not found.complete:
        return None
    candidate = found.starts == 1
    point = math.log(float(found.values[~candidate].mean()) / float(found.values[candidate].mean()))
    drawn = resampling(found.starts, found.groups, seed)
    if drawn is None or drawn.layers < 2:
        return effect(point, None, None, len(found.values), confidence)
    means = []
    for own in (~candidate, candidate):
        sums = drawn.times @ np.bincount(drawn.of[own], found.values[own], drawn.units)
        means.append(sums / (drawn.times @ np.bincount(drawn.of[own], minlength=drawn.units)))
    return effect(point, np.log(means[0]) - np.log(means[1]), drawn, len(found.values), confidence)
