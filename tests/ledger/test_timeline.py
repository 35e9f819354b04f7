"""Stages tile a request: whatever was measured, the parts add up, precedence decides overlaps, the rest is unattributed."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netgain.ledger.interval import Interval
from netgain.ledger.stage import PRECEDENCE, Stage
from netgain.ledger.timeline import Timeline, tile

STAGES = st.sampled_from(PRECEDENCE)
# Whole milliseconds make every overlap exact, so that a brute-force count per millisecond is the truth.
MILLISECONDS = st.integers(min_value=-20, max_value=120)


@st.composite
def intervals(draw: st.DrawFn) -> list[tuple[Stage, int, int]]:
    return draw(st.lists(st.tuples(STAGES, MILLISECONDS, MILLISECONDS), max_size=30))


def _by_counting(parts: list[tuple[Stage, int, int]], start: int, end: int) -> dict[Stage, int]:
    counted: dict[Stage, int] = {}
    for at in range(start, end):
        open_now = {stage for stage, begin, stop in parts if begin <= at < stop}
        stage = next((stage for stage in PRECEDENCE if stage in open_now), Stage.UNATTRIBUTED)
        counted[stage] = counted.get(stage, 0) + 1
    return counted


@settings(deadline=None)
@given(intervals(), st.integers(0, 50), st.integers(0, 60))
def test_tiles_equal_a_count_of_every_millisecond(parts: list[tuple[Stage, int, int]], start: int, length: int) -> None:
    totals = tile([Interval(s, float(b), float(e)) for s, b, e in parts], float(start), float(start + length))
    assert totals == _by_counting(parts, start, start + length)


@settings(deadline=None)
@given(
    st.lists(st.tuples(STAGES, st.floats(-1.0, 3.0), st.floats(0.0, 2.0)), max_size=40),
    st.floats(0.0, 1e6),
    st.floats(0.0, 2.0),
)
def test_tiles_add_up_to_the_length(parts: list[tuple[Stage, float, float]], origin: float, length: float) -> None:
    end = origin + length
    totals = tile([Interval(s, origin + b, origin + b + n) for s, b, n in parts], origin, end)
    assert all(seconds > 0 for seconds in totals.values())
    assert math.isclose(sum(totals.values()), end - origin, rel_tol=1e-12, abs_tol=1e-12)


@settings(deadline=None)
@given(intervals())
def test_order_of_measuring_does_not_matter(parts: list[tuple[Stage, int, int]]) -> None:
    forward = [Interval(s, float(b), float(e)) for s, b, e in parts]
    assert tile(forward, 0.0, 100.0) == tile(reversed(forward), 0.0, 100.0)


def test_every_stage_but_unattributed_has_one_precedence() -> None:
    assert sorted(PRECEDENCE) == sorted(set(Stage) - {Stage.UNATTRIBUTED})


@pytest.mark.parametrize(("first", "second"), [(a, b) for i, a in enumerate(PRECEDENCE) for b in PRECEDENCE[i + 1 :]])
def test_the_stage_that_stands_first_wins_an_overlap(first: Stage, second: Stage) -> None:
    totals = tile([Interval(second, 0.0, 4.0), Interval(first, 1.0, 2.0)], 0.0, 5.0)
    assert totals == {first: 1.0, second: 3.0, Stage.UNATTRIBUTED: 1.0}


def test_nothing_measured_is_all_unattributed() -> None:
    assert tile([], 1.0, 3.5) == {Stage.UNATTRIBUTED: 2.5}
    assert tile([Interval(Stage.UNATTRIBUTED, 1.0, 3.0)], 1.0, 3.5) == {Stage.UNATTRIBUTED: 2.5}
    assert tile([], 3.0, 3.0) == {}


def test_an_interval_outside_the_request_counts_for_nothing() -> None:
    assert tile([Interval(Stage.DECODE, 5.0, 9.0), Interval(Stage.QUEUED, -3.0, 0.5)], 0.0, 1.0) == {
        Stage.QUEUED: 0.5,
        Stage.UNATTRIBUTED: 0.5,
    }


def test_a_continued_stage_stays_one_interval() -> None:
    timeline = Timeline()
    timeline.add(Stage.DECODE, 0.0, 1.0)
    timeline.add(Stage.DECODE, 1.0, 2.0)
    timeline.add(Stage.DECODE, 2.0, 2.0)
    timeline.add(Stage.VERIFY, 2.0, 3.0)
    timeline.add(Stage.VERIFY, 3.5, 4.0)
    assert timeline.intervals == [
        Interval(Stage.DECODE, 0.0, 2.0),
        Interval(Stage.VERIFY, 2.0, 3.0),
        Interval(Stage.VERIFY, 3.5, 4.0),
    ]
    assert timeline.totals(0.0, 4.0) == {Stage.DECODE: 2.0, Stage.VERIFY: 1.5, Stage.UNATTRIBUTED: 0.5}


def test_a_backward_interval_is_dropped() -> None:
    timeline = Timeline()
    timeline.add(Stage.DECODE, 2.0, 1.0)
    timeline.add(Stage.DECODE, 1.0, float("nan"))
    assert timeline.intervals == []
