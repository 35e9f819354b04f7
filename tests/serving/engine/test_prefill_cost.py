"""What computing is predicted to take follows what steps of that size really take."""

import pytest

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.serving.engine.prefill_cost import PrefillCost

CURVE = StepCost(
    points=tuple(
        StepPoint(batch=1, tokens=tokens, context=context, seconds=0.005 + 0.0005 * tokens)
        for tokens in (1, 512)
        for context in (0, 2048)
    )
)


def predicted(cost: PrefillCost, tokens: int) -> float:
    seconds = cost.seconds(0, tokens)
    assert seconds is not None
    return seconds


def test_many_short_steps_tell_nothing_of_long_ones() -> None:
    """Behind a loaded prefix only a short suffix is computed, request after request."""
    cost = PrefillCost(lambda: CURVE, 512)
    cost.observed(512, 0, 2 * (0.005 + 0.256))
    for _ in range(100):
        cost.observed(16, 1024, 0.5 * (0.005 + 0.008))
    assert predicted(cost, 1024) == pytest.approx(4 * (0.005 + 0.256))
    assert predicted(cost, 16) == pytest.approx(0.5 * (0.005 + 0.008))


def test_sizes_of_which_nothing_is_known_go_by_the_nearest() -> None:
    cost = PrefillCost(lambda: CURVE, 512)
    assert predicted(cost, 300) == pytest.approx(0.155)
    cost.observed(512, 0, 2 * 0.261)
    assert predicted(cost, 40) == pytest.approx(2 * 0.025)


def test_a_machine_that_becomes_slower_is_followed_within_a_dozen_steps() -> None:
    cost = PrefillCost(lambda: CURVE, 512)
    for slow, steps in ((1, 100), (3, 12)):
        for _ in range(steps):
            cost.observed(512, 0, slow * 0.261)
    assert predicted(cost, 512) == pytest.approx(3 * 0.261)
