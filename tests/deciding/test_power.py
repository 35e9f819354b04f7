"""What a design can find, and how much more of it would decide: checked by simulating just that."""

import math

import numpy as np
import pytest

from netgain.deciding.experiment.observation import BASELINE, Observation
from netgain.deciding.experiment.power import (
    Spent,
    detectable_effect,
    needed_to_decide,
    next_steps,
    spent,
)
from netgain.deciding.experiment.resampling import resampling
from netgain.deciding.experiment.statistics import Effect, effect
from netgain.deciding.experiment.verdict import finding

COST = Spent(blocks=48, block_s=5.0)


def measured(ratio, error, units=12, unit="group"):
    return Effect(
        ratio=ratio,
        low=ratio * math.exp(-2.2 * error),
        high=ratio * math.exp(2.2 * error),
        units=units,
        unit=unit,
        pairs=3 * units,
        error=error,
        freedom=units - 1,
        p_faster=0.5,
        p_slower=0.5,
    )


@pytest.mark.parametrize("error", [0.004, 0.02])
def test_the_detectable_effect_is_adopted_four_times_in_five(error):
    units, minimum = 12, 0.03
    truth = math.log1p(detectable_effect(measured(1.0, error, units), minimum))
    generator = np.random.default_rng(0)
    drawn = resampling(np.zeros(units, dtype=int), np.arange(units), 0)
    found = 0
    for _ in range(400):
        gains = truth + generator.normal(0.0, error * math.sqrt(units), units)
        result = effect(float(gains.mean()), drawn.times @ gains / units, drawn, units)
        found += finding(result, math.log1p(minimum)) == "faster"
    assert 0.74 <= found / 400 <= 0.86


def test_no_interval_or_too_few_units_detect_nothing():
    assert detectable_effect(None, 0.03) is None
    assert detectable_effect(measured(1.0, 0.01, units=5), 0.03) is None


def test_the_units_that_would_decide_make_an_interval_that_does():
    now = measured(1.06, 0.05)
    needed = needed_to_decide(now, 0.03, COST)
    then = measured(1.06, 0.05 * math.sqrt(12 / needed.units), needed.units)
    assert math.log(1.06) == pytest.approx(2.0 * then.error, rel=0.1)
    assert needed.blocks == (needed.units - 12) * 4
    assert needed.minutes == pytest.approx(needed.blocks * 5.0 / 60)


def test_a_small_effect_is_decided_once_large_ones_are_excluded():
    needed = needed_to_decide(measured(1.0, 0.05), 0.03, COST)
    assert needed.units > needed_to_decide(measured(1.08, 0.05), 0.03, COST).units


def test_no_number_of_units_decides_an_effect_as_large_as_the_minimum_or_noise_beyond_reason():
    assert needed_to_decide(measured(1.0299999, 0.05), 0.03, COST) is None
    assert needed_to_decide(measured(1.0, 1.0), 0.03, COST) is None
    assert needed_to_decide(measured(1.2, 0.0), 0.03, COST) is None


def test_what_would_decide_is_told_in_blocks_and_minutes():
    now = measured(1.06, 0.05)
    told = next_steps(now, needed_to_decide(now, 0.03, COST), full_form=False, looping=False)
    assert told[0].startswith("about ")
    assert "groups of prompts would decide it" in told[0]
    assert "more blocks, about" in told[0]
    assert "min)" in told[0]


def test_blocks_are_counted_and_timed(make_record):
    seen = [
        Observation(arm=BASELINE, group=0, block=block, record=make_record(start_s=10.0 * block)) for block in range(4)
    ]
    assert spent(seen) == Spent(blocks=4, block_s=10.0)
    assert spent([]) == Spent(blocks=0, block_s=None)
