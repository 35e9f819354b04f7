"""Up to which load does it pay? One effect per load with intervals that hold together, and where the sign flips.

The same starts of the servers, and blocks of all loads in turns, so that loads differ by the load alone. Intervals are
Bonferroni's: all of them hold the truth together with the confidence asked for. The crossover is one question, so its
interval is not corrected: it holds every load at which the curve, straight between loads in the logarithm, may be zero.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from netgain.deciding.experiment.observation import CANDIDATE, Observation, Pairs
from netgain.deciding.experiment.resampling import Floats, Resampling, resampling
from netgain.deciding.experiment.slo import SloOutcome
from netgain.deciding.experiment.statistics import CONFIDENCE, Effect, t_quantile
from netgain.deciding.experiment.verdict import Decision, Finding, percent
from netgain.wording import count

STEPS = 64  # points of the curve between two loads at which it is asked whether it may be zero


class LoadPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One load. `effect`: median speedup of paired prompts, its interval one of several that hold together.

    `in_flight`: how many requests were in flight on average while the baseline was measured, by Little's law; a block begins
    and ends with fewer. `tokens_per_s`: output tokens over the time of the arm's blocks. `predicted`: said before the run.
    `slo`: how many requests met the SLO (None: there is none).
    """

    concurrency: int
    in_flight: float | None
    effect: Effect | None
    tpot: Effect | None = None
    ttft: Effect | None = None
    decision: Decision
    finding: Finding
    reasons: tuple[str, ...]
    baseline_tokens_per_s: float | None = None
    candidate_tokens_per_s: float | None = None
    predicted: float | None = None
    slo: SloOutcome | None = None


class Crossover(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gain turns into a loss ("ends") or a loss into a gain ("begins").

    `below` and `above`: the loads tried between which the measured sign flips. `low` and `high` bound the crossing; None: it
    may lie outside the loads tried on that side.
    """

    turn: Literal["ends", "begins"]
    below: int
    above: int
    at: float
    low: float | None
    high: float | None
    confidence: float


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """`confidence` is that of all intervals together, `each` of one. `says`: the answer in a sentence.

    `pays_up_to`: the highest load so that it and all lower ones tried were adopted; `pays_from`: the lowest so that it and all
    higher ones were. `crossover` None: the measured sign flips nowhere, or more than once, which `crossover_says` tells.
    """

    points: tuple[LoadPoint, ...]
    confidence: float
    each: float
    pays_up_to: int | None
    pays_from: int | None
    crossover: Crossover | None
    crossover_says: str
    says: str

    @property
    def predicted(self) -> bool:
        """Whether something was said of any load before the run."""
        return any(point.predicted is not None for point in self.points)


def each_confidence(loads: int, confidence: float = CONFIDENCE) -> float:
    """That of one interval, so that `loads` of them hold the truth together."""
    return 1.0 - (1.0 - confidence) / loads


def sweep(
    points: Sequence[LoadPoint], pairs: Mapping[int, Pairs], confidence: float = CONFIDENCE, seed: int = 0
) -> Sweep:
    """`points` in ascending order of load, with at least one; `pairs` of the primary metric, by concurrency."""
    up_to = _run(points)
    begins = _run(list(reversed(points)))
    crossover, told = find_crossover(pairs, confidence, seed)
    return Sweep(
        points=tuple(points),
        confidence=confidence,
        each=each_confidence(len(points), confidence),
        pays_up_to=up_to,
        pays_from=begins,
        crossover=crossover,
        crossover_says=told,
        says=_answer(points, up_to, begins),
    )


def find_crossover(pairs: Mapping[int, Pairs], confidence: float, seed: int) -> tuple[Crossover | None, str]:
    """Where the curve through the measured effects is zero, and what is known of it in words."""
    curve = [_Node.of(load, pairs[load], seed) for load in sorted(pairs) if len(pairs[load])]
    if len(curve) < 2:
        return None, "too few loads were measured to look for a crossover"
    flips = [
        (before, after) for before, after in itertools.pairwise(curve) if (before.point > 0.0) != (after.point > 0.0)
    ]
    zero = [_Place(load, may) for load, may in _may_be_zero(curve, confidence)]
    if len(flips) > 1:
        return None, f"the measured sign flips {len(flips)} times, so there is no single crossover"
    lowest, highest = curve[0].load, curve[-1].load
    if not flips:
        if any(place.may for place in zero):
            return None, f"no crossover is shown within the loads tried ({lowest} to {highest}), and none is excluded"
        return None, f"the crossover is not within the loads tried ({lowest} to {highest})"
    before, after = flips[0]
    share = before.point / (before.point - after.point)
    at = math.exp(math.log(before.load) + share * (math.log(after.load) - math.log(before.load)))
    around = _around(zero, at)
    low = None if not around or around[0] <= lowest else around[0]
    high = None if not around or around[-1] >= highest else around[-1]
    found = Crossover(
        turn="ends" if before.point > 0.0 else "begins",
        below=before.load,
        above=after.load,
        at=at,
        low=low,
        high=high,
        confidence=confidence,
    )
    left = f"below {lowest}" if low is None else f"{low:.1f}"
    right = f"beyond {highest}" if high is None else f"{high:.1f}"
    return found, (
        f"the sign flips between {before.load} and {after.load} in flight, at about {at:.1f} "
        f"({confidence * 100:.4g} % interval {left} to {right})"
    )


class _Place(msgspec.Struct, frozen=True):
    load: float
    may: bool


class _Node(msgspec.Struct, frozen=True):
    """The effect at one load: log ratio, and its value in each resample (None: too few units)."""

    load: int
    point: float
    drawn: Resampling | None
    spread: Floats | None

    @staticmethod
    def of(load: int, pairs: Pairs, seed: int) -> "_Node":
        logs, drawn = pairs.log_ratios, resampling(pairs.starts, pairs.groups, seed)
        if drawn is None:
            return _Node(load, float(np.median(logs)), None, None)
        return _Node(
            load, float(drawn.medians(logs, np.ones((1, drawn.units)))[0]), drawn, drawn.medians(logs, drawn.times)
        )


def _may_be_zero(curve: Sequence[_Node], confidence: float) -> list[tuple[float, bool]]:
    found: list[tuple[float, bool]] = []
    for before, after in itertools.pairwise(curve):
        for step in range(STEPS + 1):
            share = step / STEPS
            load = math.exp((1.0 - share) * math.log(before.load) + share * math.log(after.load))
            point = (1.0 - share) * before.point + share * after.point
            half = _half(before, after, share, confidence)
            found.append((load, half is None or abs(point) <= half))
    return found


def _half(before: _Node, after: _Node, share: float, confidence: float) -> float | None:
    """Half the interval of the curve between two loads. Starts are the same ones for both loads, so what a start does to both
    is kept together; groups of prompts are not."""
    if before.drawn is None or after.drawn is None or before.spread is None or after.spread is None:
        return None
    freedom = min(before.drawn.freedom, after.drawn.freedom)
    same = before.drawn.unit == after.drawn.unit == "start" and before.drawn.times.shape == after.drawn.times.shape
    if same:
        error = before.drawn.error((1.0 - share) * before.spread + share * after.spread)
    else:
        error = math.hypot((1.0 - share) * before.drawn.error(before.spread), share * after.drawn.error(after.spread))
    return t_quantile(confidence, freedom) * error


def _around(zero: Sequence[_Place], at: float) -> list[float]:
    """The loads next to `at`, without a gap, at which the curve may be zero."""
    nearest = min(range(len(zero)), key=lambda place: abs(math.log(zero[place].load) - math.log(at)))
    if not zero[nearest].may:
        return [at, at]
    first = last = nearest
    while first > 0 and zero[first - 1].may:
        first -= 1
    while last + 1 < len(zero) and zero[last + 1].may:
        last += 1
    return [place.load for place in zero[first : last + 1]]


def _run(points: Sequence[LoadPoint]) -> int | None:
    """The last of the points from the first on that were adopted without a gap."""
    found = None
    for point in points:
        if point.decision != "adopt":
            break
        found = point.concurrency
    return found


def _answer(points: Sequence[LoadPoint], up_to: int | None, begins: int | None) -> str:
    lowest, highest = points[0].concurrency, points[-1].concurrency
    adopted = [point.concurrency for point in points if point.decision == "adopt"]
    if len(adopted) == len(points):
        return f"It pays at every load tried, {lowest} to {count(highest, 'concurrent request')}"
    if up_to is not None and len(adopted) == 1 + [p.concurrency for p in points].index(up_to):
        after = next(point for point in points if point.concurrency > up_to)
        if up_to == lowest:
            return f"It pays at {count(up_to, 'concurrent request')}; at {after.concurrency} {_state(after)}"
        return f"It pays up to {count(up_to, 'concurrent request')}; at {after.concurrency} {_state(after)}"
    if begins is not None and len(adopted) == len(points) - [p.concurrency for p in points].index(begins):
        before = [point for point in points if point.concurrency < begins][-1]
        return (
            f"It pays from {count(begins, 'concurrent request')} on, up to the {highest} tried; at {before.concurrency} "
            f"{_state(before)}"
        )
    if adopted:
        others = ", ".join(f"{p.concurrency} ({_state(p)})" for p in points if p.decision != "adopt")
        return f"It pays at {', '.join(map(str, adopted))} concurrent requests, but not at {others}"
    if all(point.decision == "reject" for point in points):
        return f"It pays at no load tried, {lowest} to {count(highest, 'concurrent request')}"
    return f"It is shown to pay at no load tried: {', '.join(f'{p.concurrency} ({_state(p)})' for p in points)}"


def _state(point: LoadPoint) -> str:
    match point.finding:
        case "slower":
            return f"it is slower ({percent(point.effect.ratio)})" if point.effect else "it is slower"
        case "same":
            return "there is no difference that matters"
        case "faster":
            return point.reasons[0] if point.reasons else "it was not adopted"
        case "unclear":
            return "no gain is shown"


def tokens_per_s(observations: Sequence[Observation], arm: str = CANDIDATE) -> float | None:
    """Output tokens of one arm over the time of its blocks; None where a count is unknown."""
    spans: dict[int, list[float]] = {}
    tokens = 0
    for seen in observations:
        if seen.arm == arm and seen.record.ok:
            if seen.record.output_tokens is None:
                return None
            tokens += seen.record.output_tokens
            spans.setdefault(seen.block, []).extend((seen.record.scheduled_s, seen.record.finished_s))
    wall = sum(max(span) - min(span) for span in spans.values())
    return tokens / wall if wall > 0.0 else None
