"""Intervals, medians and resamples against their definitions and against simulated truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.deciding.experiment.correction import holm_levels
from netgain.deciding.experiment.observation import Pairs
from netgain.deciding.experiment.resampling import FEWEST_UNITS, resampling, unit_medians, weighted_medians
from netgain.deciding.experiment.statistics import mean_effect, median_effect, t_quantile


def pairs_of(gains, groups, starts=None):
    """Pairs whose log ratios are `gains`."""
    gains, groups = np.asarray(gains, dtype=float), np.asarray(groups)
    return Pairs(
        starts=np.zeros_like(groups) if starts is None else np.asarray(starts),
        groups=groups,
        log_baseline=np.zeros_like(gains),
        log_candidate=-gains,
        baseline=np.ones_like(gains),
        candidate=np.exp(-gains),
        items=tuple(map(str, range(len(gains)))),
    )


@pytest.mark.parametrize(
    ("starts", "groups", "start_noise"), [(1, 8, 0.0), (1, 24, 0.0), (6, 4, 0.0), (6, 4, 0.02), (2, 6, 0.0)]
)
def test_intervals_cover_the_planted_effect(starts, groups, start_noise):
    generator = np.random.default_rng(1)
    trials, prompts, truth = 500, 3, 1.1
    group = np.repeat(np.arange(starts * groups), prompts)
    covered = 0
    for trial in range(trials):
        gains = math.log(truth) + generator.normal(0.0, start_noise, starts)[group // groups]
        gains += generator.normal(0.0, 0.02, starts * groups)[group] + generator.normal(0.0, 0.05, len(group))
        found = median_effect(pairs_of(gains, group, group // groups), trial)
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / trials <= 0.98


def test_starts_are_the_unit_only_when_there_are_enough():
    groups = np.arange(12)
    for starts in (1, FEWEST_UNITS - 1, FEWEST_UNITS):
        drawn = resampling(groups * starts // 12, groups, 0)
        assert (drawn.unit, drawn.units) == (("start", starts) if starts >= FEWEST_UNITS else ("group", 12))
    assert resampling(np.zeros(3, dtype=int), np.zeros(3, dtype=int), 0) is None


@pytest.mark.parametrize("units", [2, 3, 6, 7, 12])
def test_resamples_are_draws_with_replacement(units):
    """Their mean and variance are those of the multinomial distribution: exact where enumerated, close where drawn."""
    drawn = resampling(np.zeros(units, dtype=int), np.arange(units), 0)
    assert drawn.times.sum(axis=1) == pytest.approx(units)
    assert drawn.probability.sum() == pytest.approx(1.0)
    mean = drawn.probability @ drawn.times
    variance = drawn.probability @ (drawn.times - mean) ** 2
    exact = units <= 7
    assert mean == pytest.approx(np.ones(units), rel=1e-9 if exact else 0.1)
    assert variance == pytest.approx(np.full(units, 1 - 1 / units), rel=1e-9 if exact else 0.15)


def test_the_error_of_a_mean_is_the_textbook_one():
    gains = np.array([0.01, 0.05, -0.02, 0.03, 0.08, 0.0])
    drawn = resampling(np.zeros(6, dtype=int), np.arange(6), 0)
    assert drawn.error(drawn.times @ gains / 6) == pytest.approx(gains.std(ddof=1) / math.sqrt(6))
    assert t_quantile(0.95, 5) == pytest.approx(2.5706, abs=1e-4)


def test_the_order_of_starting_cancels_and_widens_nothing():
    """The server started first is 6 % slower for as long as it lives; it is the baseline in even starts."""
    generator = np.random.default_rng(2)
    group = np.repeat(np.arange(24), 2)
    start = group // 4
    gains = math.log(1.05) + generator.normal(0.0, 0.02, len(group))
    ordered = gains + np.where(start % 2 == 0, 0.06, -0.06)
    plain, found = (median_effect(pairs_of(values, group, start), 0) for values in (gains, ordered))
    assert found.ratio == pytest.approx(plain.ratio)
    assert found.error == pytest.approx(plain.error)
    assert (found.units, found.freedom) == (6, 4)
    assert found.low > 1.0


def test_units_are_drawn_in_the_place_of_their_own_layer_only():
    starts = np.arange(8)
    drawn = resampling(starts, starts, 0)
    assert drawn.times[:, drawn.layer == 0].sum(axis=1) == pytest.approx(4)
    assert drawn.times[:, drawn.layer == 1].sum(axis=1) == pytest.approx(4)
    assert drawn.probability.sum() == pytest.approx(1.0)
    assert resampling(np.zeros(8, dtype=int), starts, 0).layers == 1


def test_equal_values_have_an_interval_of_no_width():
    found = median_effect(pairs_of(np.full(6, math.log(1.2)), np.arange(6)), 0)
    assert found.low == pytest.approx(1.2)
    assert found.high == pytest.approx(1.2)
    assert (found.p_faster, found.p_slower) == pytest.approx((0.0, 1.0))


def test_the_mean_ratio_weighs_long_requests_the_median_does_not():
    pairs = pairs_of([math.log(2.0)] * 5 + [0.0], np.arange(6))
    pairs.baseline[:] = [1, 1, 1, 1, 1, 100]
    pairs.candidate[:] = [0.5, 0.5, 0.5, 0.5, 0.5, 100]
    assert median_effect(pairs, 0).ratio == pytest.approx(2.0)
    assert mean_effect(pairs, 0).ratio == pytest.approx(105 / 102.5)


def test_weighted_medians_equal_medians_of_repeated_values():
    generator = np.random.default_rng(0)
    values = generator.normal(size=9)
    weights = generator.integers(0, 4, size=(50, 9)).astype(float)
    weights[:, 0] += 1
    for row, found in zip(weights, weighted_medians(values, weights), strict=True):
        assert found == pytest.approx(np.median(np.repeat(values, row.astype(int))))


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(-5, 5)), min_size=1, max_size=30))
def test_unit_medians_equal_medians_unit_by_unit(rows):
    units = np.unique([unit for unit, _ in rows], return_inverse=True)[1]
    logs = np.array([value for _, value in rows])
    expected = [np.median(logs[units == unit]) for unit in range(units.max() + 1)]
    assert unit_medians(logs, units) == pytest.approx(expected)


def test_holm_steps_down_and_stops_at_the_first_failure():
    assert holm_levels([0.01, 0.04, 0.03], 0.06) == pytest.approx((0.02, 0.06, 0.03))
    assert holm_levels([0.5, 0.01, 0.03], 0.06) == pytest.approx((0.06, 0.02, 0.03))
    assert holm_levels([0.03, 0.01, 0.04], 0.03) == pytest.approx((0.015, 0.01, 0.015)), "0.03 fails, so 0.04 does too"
    assert holm_levels([], 0.05) == ()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.2))
def test_holm_finds_at_least_what_bonferroni_finds_and_at_most_what_no_correction_does(p_values, level):
    shown = [p <= allowed for p, allowed in zip(p_values, holm_levels(p_values, level), strict=True)]
    assert all(found or p > level / len(p_values) for found, p in zip(shown, p_values, strict=True))
    assert all(not found or p <= level for found, p in zip(shown, p_values, strict=True))
