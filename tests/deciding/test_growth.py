"""A design that grows where noise is large: decided once, from the error alone, and only as far as was said."""

from collections import Counter

import pytest

from netgain.deciding.decide.budget import estimate
from netgain.deciding.decide.growing import growing_design, most_starts, when_enough
from netgain.deciding.decide.narrate import Silence
from netgain.deciding.decide.settings import FULL, QUICK
from netgain.deciding.experiment.growth import TARGET, grow
from netgain.measuring.workload.item import Item, Message


def items_of(count: int) -> list[Item]:
    return [
        Item(id=f"p{n}", category="c", messages=(Message(role="user", content=f"{n}"),), max_tokens=8)
        for n in range(count)
    ]


def test_a_quiet_run_does_not_grow(make_trial):
    found = grow(make_trial(groups=12, starts=6, start_noise=0.001), 10, 0.03)
    assert (found.starts, found.says) == (6, None)


def test_a_noisy_run_grows_by_pairs_of_starts_and_says_why(make_trial):
    wanted = {
        grow(make_trial(groups=12, starts=6, start_noise=0.035, seed=seed), 10, 0.03).starts for seed in range(12)
    }
    assert wanted <= {6, 8, 10}
    assert len(wanted) > 1
    found = grow(make_trial(groups=12, starts=6, start_noise=0.2), 10, 0.03)
    assert found.starts == 10
    assert f"to find {TARGET:.0%}" in found.says


def test_how_large_the_effect_looks_has_no_part_in_it(make_trial):
    for seed in range(4):
        sizes = {
            grow(make_trial(speedup=speedup, groups=12, starts=6, start_noise=0.03, seed=seed), 10, 0.03).starts
            for speedup in (0.8, 1.0, 1.04, 2.0)
        }
        assert len(sizes) == 1


def test_the_fewest_starts_hold_the_prompts_that_they_always_held():
    small = growing_design(items_of(45), FULL, 1, FULL.starts)
    large = growing_design(items_of(45), FULL, 1, FULL.most_starts)
    assert large.fewest == small
    assert large.starts == 10
    assert [large.order(group) for group in range(72)] == [small.order(group) for group in range(72)]
    assert Counter(large.start_of(group) for group in range(len(large.groups))) == dict.fromkeys(range(10), 12)


def test_the_quick_form_never_grows():
    assert growing_design(items_of(24), QUICK, 1, QUICK.starts).enough_after is None


def test_a_budget_bounds_how_far_it_may_grow():
    cost = estimate(FULL, FULL.expected_s(1.0, 1), 5.0, 1)
    seconds = 3600.0 * cost.device_hours
    assert most_starts(FULL, cost, None) == 10
    assert most_starts(FULL, cost, 1.4 * seconds) == 8
    assert most_starts(FULL, cost, 1.0) == 6


@pytest.mark.parametrize(("noise", "starts"), [(0.001, 6), (0.2, 10)])
def test_it_is_asked_after_the_fewest_starts(make_trial, noise, starts):
    kept = []
    design = growing_design(items_of(45), FULL, 1, FULL.most_starts)
    enough = when_enough(design, 0.03, 0, Silence(), kept.append)
    assert enough(make_trial(groups=12, starts=6, start_noise=noise)) == starts
    assert kept[0].starts == starts
