"""A request's time, tiled by stages: intervals are measured where they happen, and what no interval covers is unattributed."""

from collections.abc import Iterable, Iterator

import msgspec

from netgain.ledger.stage import PRECEDENCE, Stage


class Interval(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One measured wait, in seconds of the host's monotonic clock."""

    stage: Stage
    start_s: float
    end_s: float


class Timeline:
    """The intervals of one request (one choice), in the order in which they were measured."""

    __slots__ = ("intervals",)

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self.intervals: list[Interval] = list(intervals)

    def add(self, stage: Stage, start_s: float, end_s: float) -> None:
        """Record that the request waited for `stage`; joins the last interval when it continues it, drops an empty one."""
        if not end_s > start_s:
            return
        if self.intervals:
            last = self.intervals[-1]
            if last.stage is stage and last.end_s == start_s:
                self.intervals[-1] = Interval(stage, last.start_s, end_s)
                return
        self.intervals.append(Interval(stage, start_s, end_s))

    def totals(self, start_s: float, end_s: float) -> dict[Stage, float]:
        """Seconds per stage over [start_s, end_s]; they add up to its length, `unattributed` included."""
        return tile(self.intervals, start_s, end_s)


# UNATTRIBUTED has no rank: an interval that says "unattributed" covers nothing.
_RANK = {stage: rank for rank, stage in enumerate(PRECEDENCE)}


def tile(intervals: Iterable[Interval], start_s: float, end_s: float) -> dict[Stage, float]:
    """Tile [start_s, end_s] with `intervals`, by precedence where they overlap. Returns only stages that occur."""
    totals: dict[Stage, float] = {}
    for stage, begin_s, until_s in segments(intervals, start_s, end_s):
        totals[stage] = totals.get(stage, 0.0) + (until_s - begin_s)
    return totals


def segments(intervals: Iterable[Interval], start_s: float, end_s: float) -> Iterator[tuple[Stage, float, float]]:
    """The pieces of [start_s, end_s] in order, each with the one stage that is waited for; neighbours may share theirs."""
    edges: list[tuple[float, int, int]] = []
    for interval in intervals:
        begin, end = max(interval.start_s, start_s), min(interval.end_s, end_s)
        rank = _RANK.get(interval.stage)
        if end > begin and rank is not None:
            edges.append((begin, rank, 1))
            edges.append((end, rank, -1))
    edges.sort()
    edges.append((end_s, 0, 0))
    counts = [0] * len(PRECEDENCE)
    # Bit r is set while an interval of rank r is open, so the lowest set bit is the stage that is waited for.
    active = 0
    at = start_s
    for time_s, rank, change in edges:
        if time_s > at:
            yield PRECEDENCE[(active & -active).bit_length() - 1] if active else Stage.UNATTRIBUTED, at, time_s
            at = time_s
        counts[rank] += change
        active = active | (1 << rank) if counts[rank] else active & ~(1 << rank)
