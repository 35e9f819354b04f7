"""One measured request with its place in the experiment, and the pairing of both arms by prompt."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from netgain.measuring.client.record import ClientRecord

BASELINE = "baseline"
CANDIDATE = "candidate"
CONTROL = "control"  # a second start of the baseline, for the A/A comparison across starts

Metric = Callable[[ClientRecord], float | None]


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """`start` counts the starts of the servers, `group` the sets of prompts measured together, `block` blocks in time.

    Numbers of groups and blocks are not used again after a new start. `text`: repeats of a prompt with the same number were asked
    in the same words; another one was told apart by a mark in its text (`Asking.marked`), so its answer may be another one.
    """

    arm: str
    group: int
    block: int
    record: ClientRecord
    start: int = 0
    text: int = 0

    @property
    def key(self) -> tuple[int, str]:
        """What both arms share: the prompt, within its group."""
        return self.group, self.record.item_id


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of both arms, paired by prompt: arrays of shape [pairs]; infinite where a request failed.

    `log_baseline` and `log_candidate` are means over repeats of the logarithm, `baseline` and `candidate` means of the
    value itself; `groups` tells which pairs were measured together, `starts` under which start of the servers.
    """

    starts: NDArray[np.int64]
    groups: NDArray[np.int64]
    log_baseline: NDArray[np.float64]
    log_candidate: NDArray[np.float64]
    baseline: NDArray[np.float64]
    candidate: NDArray[np.float64]
    items: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def log_ratios(self) -> NDArray[np.float64]:
        """log(baseline / candidate) per pair; positive = the candidate is faster. Failures count as +-LOG_FAILED."""
        return clip_failures(self.log_baseline) - clip_failures(self.log_candidate)


LOG_FAILED = 30.0  # a failed request is slower than anything measured, yet finite, so that medians stay defined


def clip_failures(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace infinite logarithms (failures) by a finite value beyond every real one."""
    return np.minimum(logs, LOG_FAILED)


def pair(
    observations: Iterable[Observation], metric: Metric, baseline: str = BASELINE, candidate: str = CANDIDATE
) -> Pairs:
    """Pair two arms by prompt. A prompt without a known value in both arms is left out (unknown is not zero)."""
    values: dict[str, dict[tuple[int, str], list[float]]] = {baseline: defaultdict(list), candidate: defaultdict(list)}
    starts: dict[int, int] = {}
    for observation in observations:
        if observation.arm in values:
            value = metric(observation.record)
            if value is not None:
                values[observation.arm][observation.key].append(value)
                starts[observation.group] = observation.start
    return pair_values(values[baseline], values[candidate], starts)


def pair_values(
    baseline: dict[tuple[int, str], list[float]],
    candidate: dict[tuple[int, str], list[float]],
    starts: Mapping[int, int],
) -> Pairs:
    """Pair repeats that are already sorted by (group, prompt); `starts` is the start of each group."""
    keys = [key for key in sorted(baseline) if candidate.get(key)]
    return Pairs(
        starts=np.array([starts[group] for group, _ in keys], dtype=np.int64),
        groups=np.array([group for group, _ in keys], dtype=np.int64),
        log_baseline=np.array([_mean_log(baseline[key]) for key in keys], dtype=np.float64),
        log_candidate=np.array([_mean_log(candidate[key]) for key in keys], dtype=np.float64),
        baseline=np.array([sum(baseline[key]) / len(baseline[key]) for key in keys], dtype=np.float64),
        candidate=np.array([sum(candidate[key]) / len(candidate[key]) for key in keys], dtype=np.float64),
        items=tuple(item for _, item in keys),
    )


def _mean_log(values: list[float]) -> float:
    return sum(math.log(max(value, 1e-9)) for value in values) / len(values)
