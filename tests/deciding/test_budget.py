"""Device-hours are said before, and a budget makes the experiment smaller or refuses it, saying what is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.deciding.decide.budget import estimate, parse_budget, within
from netgain.deciding.decide.settings import FULL, QUICK
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.errors import UsageError


def at(request_s):
    """Measuring one request after the other."""
    return lambda form: form.expected_s(request_s, 1)


def test_device_hours_count_every_arm_and_device_from_the_first_start_to_the_end():
    found = estimate(QUICK, measuring_s=300.0, start_s=60.0, devices=2)
    assert found.wall_s == 300.0 + 2 * 2 * 60.0
    assert found.device_hours == pytest.approx(2 * 2 * found.wall_s / 3600.0)
    assert "2 arms x 2 devices" in found.says


def test_a_budget_that_suffices_changes_nothing():
    assert within(1e9, FULL, at(1.0), 10.0, 1) == (FULL, ())


def test_the_control_arm_goes_first_and_each_loss_is_said():
    enough = 3600.0 * estimate(FULL, at(1.0)(FULL), 10.0, 1).device_hours
    form, lost = within(enough * 0.9, FULL, at(1.0), 10.0, 1)
    assert form.control_every is None
    assert form.starts == FULL.starts
    assert len(lost) == 1
    form, lost = within(enough * 0.3, FULL, at(1.0), 10.0, 1)
    assert form.starts < FEWEST_UNITS
    assert any("within these starts only" in told for told in lost)


@given(
    share=st.floats(0.0001, 1.2),
    request_s=st.floats(0.01, 100.0),
    start_s=st.floats(0.1, 600.0),
    devices=st.integers(1, 16),
    form=st.sampled_from([QUICK, FULL]),
)
def test_what_is_given_costs_at_most_the_budget_and_can_decide(share, request_s, start_s, devices, form):
    budget = share * 3600.0 * estimate(form, at(request_s)(form), start_s, devices).device_hours
    try:
        given_form, lost = within(budget, form, at(request_s), start_s, devices)
    except UsageError:
        with pytest.raises(UsageError, match="the least that can decide anything is"):
            within(budget, form, at(request_s), start_s, devices)
        return
    assert 3600.0 * estimate(given_form, at(request_s)(given_form), start_s, devices).device_hours <= budget
    assert given_form.starts * given_form.groups >= FEWEST_UNITS
    assert bool(lost) == (given_form != form)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("0.5h", 1800)]
)
def test_budgets_are_read_as_people_write_them(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "2x", "-1h", "h", "2h later", "0h"])
def test_a_budget_that_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match="budget"):
        parse_budget(text)
