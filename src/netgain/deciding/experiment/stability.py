"""Whether a result rests on calm ground: drift over the run, blocks far from their like, and single units that decide it.

None of these voids a run or removes a value; each is said, so that a reader can weigh it.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation, Pairs
from netgain.deciding.experiment.resampling import Floats, resampling, unit_medians
from netgain.deciding.experiment.statistics import Effect
from netgain.deciding.experiment.verdict import Check
from netgain.wording import count

DRIFT_P = 0.01
OUTLIER_DEVIATIONS = 5.0
NORMAL_MAD = 0.6745  # the median absolute deviation of a normal distribution, in standard deviations


def check_stability(
    observations: Sequence[Observation], pairs: Pairs, primary: Effect | None, a_a: Effect | None, seed: int
) -> tuple[Check, ...]:
    """All three checks, of the primary metric's pairs."""
    return (_drift(pairs, a_a), _outliers(observations), _influence(pairs, primary, seed))


def _drift(pairs: Pairs, a_a: Effect | None) -> Check:
    """Does the effect itself move with time (Kendall's rank correlation over groups), and does the baseline?"""
    groups = unit_medians(pairs.log_ratios, np.unique(pairs.groups, return_inverse=True)[1]) if len(pairs) else None
    if groups is None or len(groups) < 4:
        return Check(name="drift", ok=None, value=None, limit=DRIFT_P, says="too few groups to see one")
    trend, p = _trend(groups)
    told = f"the effect shows no trend over the run (p = {p:.2f})"
    if p < DRIFT_P:
        told = f"the effect {'grew' if trend > 0 else 'fell'} during the run (p = {p:.3f}): it is no constant"
    moved = a_a is not None and a_a.interval is not None and not a_a.interval[0] <= 1.0 <= a_a.interval[1]
    if moved and a_a is not None:
        told += f"; the baseline itself changed by {1.0 / a_a.ratio - 1.0:+.1%} within a group, which the order cancels"
    return Check(name="drift", ok=True if p >= DRIFT_P and not moved else None, value=p, limit=DRIFT_P, says=told)


def _trend(values: Floats) -> tuple[float, float]:
    """Kendall's rank correlation with time and its two-sided p value (normal approximation, from 4 values on)."""
    count = len(values)
    later = np.sign(values[None, :] - values[:, None])
    agree = float(np.sum(np.triu(later, 1)))
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18.0)
    return agree / (count * (count - 1) / 2.0), 2.0 * float(ndtr(-max(0.0, abs(agree) - 1.0) / spread))


def _outliers(observations: Sequence[Observation]) -> Check:
    """Blocks whose time is far from that of the same prompts in the arm's other blocks."""
    logs: dict[tuple[str, int, str], list[tuple[int, float]]] = defaultdict(list)
    for seen in observations:
        if seen.arm in (BASELINE, CANDIDATE) and seen.record.ok:
            logs[(seen.arm, *seen.key)].append((seen.block, float(np.log(max(seen.record.e2e_s, 1e-9)))))
    apart: dict[int, list[float]] = defaultdict(list)
    for repeats in logs.values():
        if len(repeats) > 1:
            middle = sum(value for _, value in repeats) / len(repeats)
            for block, value in repeats:
                apart[block].append(value - middle)
    if len(apart) < 8:
        return Check(
            name="outliers", ok=None, value=None, limit=OUTLIER_DEVIATIONS, says="too few repeated blocks to see any"
        )
    blocks: Floats = np.array([float(np.median(values)) for values in apart.values()])
    scale = float(np.median(np.abs(blocks))) / NORMAL_MAD
    far = int(np.sum(np.abs(blocks) > OUTLIER_DEVIATIONS * scale)) if scale > 0.0 else 0
    told = f"no block of {len(blocks)} lies beyond {OUTLIER_DEVIATIONS:g} robust deviations of its repeats"
    if far:
        told = (
            f"{count(far, 'block')} of {len(blocks)} lie beyond {OUTLIER_DEVIATIONS:g} robust deviations of their repeats; they "
            "are kept, and medians and intervals carry them"
        )
    return Check(name="outliers", ok=None if far else True, value=float(far), limit=OUTLIER_DEVIATIONS, says=told)


def _influence(pairs: Pairs, primary: Effect | None, seed: int) -> Check:
    """Leaves out one unit at a time: does the direction of the effect rest on a single one?"""
    name = "influence"
    drawn = resampling(pairs.starts, pairs.groups, seed)
    if primary is None or primary.interval is None or drawn is None or drawn.units < 3:
        return Check(name=name, ok=None, value=None, limit=None, says="too few units to leave one out")
    logs = pairs.log_ratios
    ratios = np.exp(drawn.medians(logs, 1.0 - np.eye(drawn.units))).tolist()
    span = f"{min(ratios):.3f}x to {max(ratios):.3f}x"
    turns = sum((ratio > 1.0) != (primary.ratio > 1.0) for ratio in ratios)
    shown = not primary.interval[0] <= 1.0 <= primary.interval[1]
    told = f"with any one {drawn.unit} left out the speedup is {span}"
    if shown and turns:
        told += f": the direction rests on {count(turns, drawn.unit)}"
    return Check(
        name=name, ok=None if shown and turns else True, value=max(ratios) / min(ratios) - 1.0, limit=None, says=told
    )
