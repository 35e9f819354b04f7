"""The curve gives back what was measured, stays between its neighbours elsewhere, and says when it was asked beyond."""

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netgain.cost.step_cost import Estimate, StepCost, StepPoint
from netgain.errors import UsageError

GRID = st.dictionaries(
    st.tuples(st.integers(1, 16), st.integers(1, 64), st.integers(0, 512)),
    st.floats(1e-4, 1.0),
    min_size=1,
    max_size=25,
)


def curve(points: dict[tuple[int, int, int], float]) -> StepCost:
    return StepCost(
        points=tuple(StepPoint(batch=b, tokens=t, context=c, seconds=s) for (b, t, c), s in points.items()),
        subject={"kernel": "test"},
    )


FULL = curve(
    {
        (batch, tokens, context): 0.01 * batch + 0.001 * tokens + 0.0001 * context
        for batch in (1, 4)
        for tokens in (1, 5, 9)
        for context in (0, 100)
    }
)


@given(GRID)
@settings(deadline=None)
def test_measured_points_are_given_back(points: dict[tuple[int, int, int], float]) -> None:
    cost = curve(points)
    for (batch, tokens, context), seconds in points.items():
        assert cost.verify(batch, tokens, context) == Estimate(seconds)


@given(GRID, st.integers(1, 20), st.integers(1, 80), st.integers(0, 600))
@settings(deadline=None)
def test_no_estimate_leaves_the_measured_values(
    points: dict[tuple[int, int, int], float], batch: int, tokens: int, context: int
) -> None:
    estimate = curve(points).verify(batch, tokens, context)
    low, high = min(points.values()), max(points.values())
    assert low * (1 - 1e-12) <= estimate.seconds <= high * (1 + 1e-12)
    if batch > max(b for b, _, _ in points) or batch < min(b for b, _, _ in points):
        assert "batch" in estimate.outside
    if tokens > max(t for _, t, _ in points) or tokens < min(t for _, t, _ in points):
        assert "tokens" in estimate.outside
    if context > max(c for _, _, c in points) or context < min(c for _, _, c in points):
        assert "context" in estimate.outside


@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 100))
def test_a_plane_is_read_exactly(batch: int, tokens: int, context: int) -> None:
    estimate = FULL.verify(batch, tokens, context)
    assert estimate.inside
    assert math.isclose(estimate.seconds, 0.01 * batch + 0.001 * tokens + 0.0001 * context)


def test_a_dip_is_kept() -> None:
    cost = curve({(1, 1, 0): 0.010, (1, 7, 0): 0.030, (1, 8, 0): 0.012, (1, 16, 0): 0.020})
    assert cost.verify(1, 8, 0).seconds == 0.012
    assert cost.verify(1, 4, 0).seconds == pytest.approx(0.020)
    assert cost.v(8, batch=1, context=0) == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("asked", "outside"),
    [
        ((8, 5, 50), ("batch",)),
        ((1, 10, 50), ("tokens",)),
        ((2, 10, 50), ("tokens",)),
        ((1, 5, 101), ("context",)),
        ((8, 99, 999), ("batch", "context", "tokens")),
    ],
)
def test_beyond_the_range_the_edge_is_given_and_named(asked: tuple[int, int, int], outside: tuple[str, ...]) -> None:
    estimate = FULL.verify(*asked)
    batch, tokens, context = asked
    assert estimate.outside == outside
    assert estimate == msgspec.structs.replace(
        FULL.verify(min(batch, 4), min(tokens, 9), min(context, 100)), outside=outside
    )


def test_long_chunks_measured_alone_do_not_stretch_the_batches() -> None:
    cost = curve({(1, 1, 0): 0.01, (1, 9, 0): 0.02, (1, 512, 0): 0.5, (4, 1, 0): 0.02, (4, 9, 0): 0.04})
    assert cost.prefill(512, 0) == Estimate(0.5)
    assert cost.verify(4, 9, 0) == Estimate(0.04)
    assert cost.verify(4, 100, 0).outside == ("tokens",)
    assert cost.verify(2, 100, 0).outside == ("tokens",)
    assert cost.verify(2, 9, 0).inside


def test_a_hole_in_a_batch_is_bridged_by_its_neighbours() -> None:
    points = {(batch, tokens, 0): 0.01 * batch for batch in (1, 4) for tokens in (1, 9)}
    cost = curve({**points, (2, 1, 0): 0.02})
    assert cost.verify(2, 9, 0) == Estimate(pytest.approx(0.02))


def test_own_cost_and_stall_add_up_to_the_step() -> None:
    pairs = FULL.split(0.050, [(1, 0), (9, 100), (9, 101)])
    assert pairs == [
        (pytest.approx(0.011), pytest.approx(0.039)),
        (pytest.approx(0.029), pytest.approx(0.021)),
        (None, None),
    ]
    assert FULL.split(0.005, [(1, 0)]) == [(0.005, 0.0)]
    assert FULL.split(0.005, []) == []


def test_v_is_unknown_outside_the_range() -> None:
    assert FULL.v(9, batch=1, context=0) == pytest.approx(0.019 / 0.011)
    assert FULL.v(1, batch=3, context=70) == 1.0
    assert FULL.v(10, batch=1, context=0) is None
    assert FULL.v(2, batch=9, context=0) is None


def test_json_gives_back_the_curve() -> None:
    FULL.verify(2, 3, 4)  # what it keeps for speed is no part of it
    again = StepCost.from_json(FULL.to_json())
    assert again == FULL
    assert again.verify(2, 3, 4) == FULL.verify(2, 3, 4)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"points": []}',
        "no json",
        '{"points": [{"batch": 1, "tokens": 1, "context": 0, "seconds": 0}]}',
        '{"points": [{"batch": 0, "tokens": 1, "context": 0, "seconds": 1}]}',
        '{"points": [{"batch": 1, "tokens": 1, "context": 0, "seconds": 1}'
        ', {"batch": 1, "tokens": 1, "context": 0, "seconds": 2}]}',
    ],
)
def test_what_is_no_curve_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a step-cost curve"):
        StepCost.from_json(text)


def test_a_batch_that_time_did_not_reach_was_meant_to_be_measured():
    cost = curve({(1, 1, 0): 0.01, (4, 1, 0): 0.02})
    assert cost.largest_batch == 4
    assert msgspec.structs.replace(cost, unmeasured=((16, 1, 0),)).largest_batch == 16


def test_a_prompt_is_charged_in_chunks() -> None:
    even = curve({(1, tokens, context): 0.001 * tokens for tokens in (1, 64, 256) for context in (0, 4096)})
    assert even.prompt_s(100, 1000) == pytest.approx(0.9)
    assert even.prompt_s(5, 5) == 0.0
    dear = curve({(1, tokens, context): 0.001 * tokens + 0.01 for tokens in (1, 256) for context in (0, 4096)})
    assert dear.prompt_s(0, 256, 64) - dear.prompt_s(0, 256) == pytest.approx(3 * 0.01), "each step has its own cost"
