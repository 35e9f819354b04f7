"""Device-hours are said before, and a budget makes the experiment smaller or refuses it, saying what is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.deciding.decide.budget import estimate, parse_budget, within
from netgain.deciding.decide.planning import plan
from netgain.deciding.decide.settings import FULL, QUICK, Settings
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.technique.decomposition import Decomposition
from netgain.errors import UsageError
from netgain.measuring.workload.item import Item

ITEMS = [Item(id=f"p{n}", category="c", prompt=f"{n}", max_tokens=8) for n in range(40)]
RECORDED = Decomposition(
    requests=40,
    dropped=0,
    e2e_s=2.0,
    client_s={},
    ttft_stages={},
    decode_stages={},
    prompt_tokens=10.0,
    cached_tokens=0.0,
    output_tokens=8.0,
)


def costs(request_s, start_s=10.0, devices=1):
    return lambda form: estimate(form, form.expected_s(request_s, 1), start_s, devices)


def test_device_hours_count_every_arm_and_device_from_the_first_start_to_the_end():
    found = estimate(QUICK, QUICK.expected_s(3.0, 1), start_s=60.0, devices=2)
    assert found.wall_s == QUICK.blocks * QUICK.group_size * 3.0 + 2 * 2 * 60.0
    assert found.device_hours == pytest.approx(2 * 2 * found.wall_s / 3600.0)
    assert "2 arms x 2 devices" in found.says


def test_a_budget_that_suffices_changes_nothing():
    assert within(1e9, FULL, costs(1.0)) == (FULL, ())


def test_the_control_arm_goes_first_and_each_loss_is_said():
    enough = 3600.0 * costs(1.0)(FULL).device_hours
    form, lost = within(enough * 0.9, FULL, costs(1.0))
    assert form.control_every is None
    assert form.starts == FULL.starts
    assert len(lost) == 1
    form, lost = within(enough * 0.3, FULL, costs(1.0))
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
    cost = costs(request_s, start_s, devices)
    budget = share * 3600.0 * cost(form).device_hours
    try:
        given_form, lost = within(budget, form, cost)
    except UsageError:
        with pytest.raises(UsageError, match="the least that can decide anything is"):
            within(budget, form, cost)
        return
    assert 3600.0 * cost(given_form).device_hours <= budget
    assert given_form.starts * given_form.groups >= FEWEST_UNITS
    assert bool(lost) == (given_form != form)


def test_a_budget_holds_for_several_loads_as_well(tmp_path):
    asked = Settings(output=tmp_path, loads=(1, 4))
    whole = plan(asked, ITEMS, RECORDED, None, 10.0)
    for share in (0.9, 0.5):
        budget_s = share * 3600.0 * whole.estimate.device_hours
        found = plan(Settings(output=tmp_path, loads=(1, 4), budget_s=budget_s), ITEMS, RECORDED, None, 10.0)
        assert 3600.0 * found.estimate.device_hours <= budget_s
        assert found.design.requests < whole.design.requests
        assert found.lost
    with pytest.raises(UsageError, match="the least that can decide anything"):
        plan(Settings(output=tmp_path, loads=(1, 4), budget_s=1.0), ITEMS, RECORDED, None, 10.0)


def test_the_estimate_of_several_loads_is_of_their_design(tmp_path):
    found = plan(Settings(output=tmp_path, loads=(1, 4)), ITEMS, RECORDED, None, 0.0)
    design = found.design
    expected_s = sum(
        len(design.order(group)) * len(items) * 2.0 / design.load_of(group) for group, items in enumerate(design.groups)
    )
    assert found.estimate.wall_s == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("0.5h", 1800)]
)
def test_budgets_are_read_as_people_write_them(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "2x", "-1h", "h", "2h later", "0h"])
def test_a_budget_that_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match="budget"):
        parse_budget(text)
