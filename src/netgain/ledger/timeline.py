"""A request's time, tiled by stages: intervals are measured where they happen, and what no interval covers is unattributed."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from netgain.ledger.interval import Interval
from netgain.ledger.stage import PRECEDENCE, Stage


class Timeline:
    """The intervals of one request (one choice), in the order in which they were measured."""

    __slots__ = ("intervals",)

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self.intervals: list[Interval] = list(intervals)

    def add(self, stage: Stage, start_s: float, end_s: float) -> None:
        """Record that the request waited for `stage`; joins the last interval when it continues or overlaps it, drops an empty
        one."""
        if not end_s > start_s:
            return
        if self.intervals:
            last = self.intervals[-1]
            if last.stage is stage and last.start_s <= start_s <= last.end_s:
                if end_s > last.end_s:
                    self.intervals[-1] = Interval(stage, last.start_s, end_s)
                return
        self.intervals.append(Interval(stage, start_s, end_s))

    def totals(self, start_s: float, end_s: float) -> dict[Stage, float]:
        """Seconds per stage over [start_s, end_s]; they add up to its length, `unattributed` included."""
        return tile(self.intervals, start_s, end_s)


# UNATTRIBUTED has no rank: an interval that says "unattributed" covers nothing.
_RANK = {stage: rank for rank, stage in enumerate(PRECEDENCE)}
_NO_RANK = -1


def tile(intervals: Iterable[Interval], start_s: float, end_s: float) -> dict[Stage, float]:
    """Tile [start_s, end_s] with `intervals`, by precedence where they overlap. Returns only stages that occur."""
    moments, waits_for = _pieces(intervals, start_s, end_s)
    seconds = np.diff(moments)
    totals = {rank: float(seconds[waits_for == rank].sum()) for rank in set(waits_for.tolist())}
    return {_stage(rank): total for rank, total in totals.items() if total > 0}


def segments(intervals: Iterable[Interval], start_s: float, end_s: float) -> Iterator[tuple[Stage, float, float]]:
    """The pieces of [start_s, end_s] in order, each with the one stage that is waited for; neighbours may share theirs."""
    moments, waits_for = _pieces(intervals, start_s, end_s)
    for rank, (begin_s, until_s) in zip(waits_for.tolist(), pairwise(moments.tolist()), strict=True):
        if until_s > begin_s:
            yield _stage(rank), begin_s, until_s


def _pieces(
    intervals: Iterable[Interval], start_s: float, end_s: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Ascending moments [n + 1], the first `start_s` and the last `end_s`, and the rank that is waited for between each two.

    Works on whole arrays, since a long answer has thousands of intervals and an event loop waits for this.
    """
    intervals = tuple(intervals)  # a list for each array, since NumPy takes longer over a list of tuples
    begins = np.array([i.start_s for i in intervals], dtype=np.float64)
    ends = np.array([i.end_s for i in intervals], dtype=np.float64)
    ranks = np.array([_RANK.get(i.stage, _NO_RANK) for i in intervals], dtype=np.int64)
    begins, ends = np.maximum(begins, start_s), np.minimum(ends, end_s)
    counts = (ends > begins) & (ranks != _NO_RANK)
    moments = np.concatenate(([start_s], begins[counts], ends[counts]))
    order = moments.argsort(kind="stable")
    changes = np.repeat((0, 1, -1), (1, counts.sum(), counts.sum()))[order]
    ranks = np.concatenate(([_NO_RANK], ranks[counts], ranks[counts]))[order]
    waits_for = np.full(len(moments), _NO_RANK, dtype=np.int64)
    for rank in range(len(PRECEDENCE) - 1, -1, -1):  # the lowest that is open counts
        changed = ranks == rank
        if changed.any():
            waits_for[np.where(changed, changes, 0).cumsum() > 0] = rank
    return np.append(moments[order], max(start_s, end_s)), waits_for


def _stage(rank: int) -> Stage:
    return Stage.UNATTRIBUTED if rank == _NO_RANK else PRECEDENCE[rank]
