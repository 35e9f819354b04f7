"""How many requests would meet the promised service level if it were tighter or looser: all its limits scaled together."""

from collections.abc import Sequence

import msgspec
import numpy as np

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.measuring.workload.slo import SLO

DOUBLINGS, STEPS = 2, 16  # from a quarter of the limits to four times them, in equal ratios; 1x is one of them


class SloCurve(msgspec.Struct, frozen=True, kw_only=True):
    """`baseline` and `candidate`: share of requests that meet every limit of `text` times each of `scales`, ascending (None where
    no request could be judged). At 1x the shares are those of the SLO itself."""

    text: str
    scales: tuple[float, ...]
    baseline: tuple[float | None, ...]
    candidate: tuple[float | None, ...]


def slo_curve(observations: Sequence[Observation], slo: SLO) -> SloCurve:
    """Of all requests of both arms; one that misses a limit it has misses the SLO, one that lacks a value is else left out."""
    limits = np.array([target.limit_s for target in slo.targets])
    scales = 2.0 ** (np.arange(-DOUBLINGS * STEPS, DOUBLINGS * STEPS + 1) / STEPS)
    shares: dict[str, tuple[float | None, ...]] = {}
    for arm in (BASELINE, CANDIDATE):
        reached = np.array(
            [[target.reached_s(seen.record) for target in slo.targets] for seen in observations if seen.arm == arm],
            dtype=np.float64,  # None becomes nan
        ).reshape(-1, len(limits))
        unknown = np.isnan(reached).any(axis=1)
        found: list[float | None] = []
        for scale in scales:
            missed = (reached > limits * scale).any(axis=1)
            judged = missed | ~unknown
            found.append(float((~missed & judged).sum() / judged.sum()) if judged.any() else None)
        shares[arm] = tuple(found)
    return SloCurve(
        text=",".join(map(str, slo.targets)),
        scales=tuple(float(scale) for scale in scales),
        baseline=shares[BASELINE],
        candidate=shares[CANDIDATE],
    )
