"""A request's timeline in a bounded number of pieces: a long answer has thousands of intervals, a trace must not."""

from collections.abc import Iterable

import msgspec

from netgain.ledger.interval import Interval
from netgain.ledger.stage import Stage
from netgain.ledger.timeline import segments

MOST_RUNS = 64
INTERRUPTION_S = 0.005  # shorter pieces of other stages do not end a run

# Steps of generation take turns, so they count as one kind of run.
_GENERATION = frozenset({Stage.DECODE, Stage.VERIFY, Stage.DRAFT})


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A contiguous piece of a request's time. `stage` took most of it; `seconds` and `pieces` say what else is in it."""

    stage: Stage
    start_s: float
    end_s: float
    seconds: dict[Stage, float]
    pieces: dict[Stage, int]


def runs(intervals: Iterable[Interval], start_s: float, end_s: float, most: int = MOST_RUNS) -> list[Run]:
    """Tile [start_s, end_s] with at most `most` runs (at least 16), in order and without gaps.

    A run joins pieces of one kind of stage across interruptions that together are shorter than INTERRUPTION_S; where
    that leaves too many, longer interruptions are joined in as well.
    """
    if most < len(Stage):
        raise ValueError(f"most is {most}; there are {len(Stage)} stages, each of which may need a run")
    pieces = list(segments(intervals, start_s, end_s))
    allowed_s = INTERRUPTION_S
    while len(found := _join(pieces, allowed_s)) > most:
        allowed_s *= 4
    return found


def _kind(stage: Stage) -> Stage:
    return Stage.DECODE if stage in _GENERATION else stage


def _join(pieces: list[tuple[Stage, float, float]], allowed_s: float) -> list[Run]:
    """Ends: once `allowed_s` exceeds the whole, each kind of stage begins at most one run."""
    found: list[Run] = []
    at = 0
    while at < len(pieces):
        kind = _kind(pieces[at][0])
        last, other_s = at, 0.0
        for place in range(at + 1, len(pieces)):
            stage, begin_s, until_s = pieces[place]
            if _kind(stage) is kind:
                last, other_s = place, 0.0
            else:
                other_s += until_s - begin_s
                if other_s >= allowed_s:
                    break
        found.append(_run(pieces[at : last + 1]))
        at = last + 1
    return found


def _run(pieces: list[tuple[Stage, float, float]]) -> Run:
    seconds: dict[Stage, float] = {}
    counts: dict[Stage, int] = {}
    for stage, begin_s, until_s in pieces:
        seconds[stage] = seconds.get(stage, 0.0) + (until_s - begin_s)
        counts[stage] = counts.get(stage, 0) + 1
    most = max(seconds, key=lambda stage: seconds[stage])
    return Run(stage=most, start_s=pieces[0][1], end_s=pieces[-1][2], seconds=seconds, pieces=counts)
