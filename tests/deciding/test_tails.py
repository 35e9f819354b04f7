"""p95 and p99 of both arms: nearest rank, and intervals in which whole units are resampled."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.resampling import resampling
from netgain.deciding.experiment.tails import Pool, Tails, values_of
from netgain.measuring.client.quantile import weighted_quantile


def pool_of(rows):
    ordered = sorted(rows, key=lambda row: -row[0])
    values, weights, units = (np.array(column) for column in zip(*ordered, strict=True))
    return Pool(
        values=values.astype(float),
        weights=weights.astype(float),
        unit=units.astype(int),
        block=units.astype(int),
        requests=len(rows),
    )


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=200),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_quantiles_of_resamples_are_those_of_the_repeated_values(rows, share):
    pool = pool_of(rows)
    assert pool.quantile(share) == weighted_quantile([(value, weight) for value, weight, _ in rows], share)
    drawn = resampling(np.zeros(3, dtype=int), np.arange(3), 0)
    for times, found in zip(drawn.times, pool.quantiles(share, drawn), strict=True):
        expected = weighted_quantile([(value, weight * times[unit]) for value, weight, unit in rows], share)
        assert (expected is None and math.isnan(found)) or found == expected


def test_a_slower_tail_is_shown_with_its_interval(make_trial):
    trial = make_trial(speedup=1 / 1.2, groups=12, prompts=8)
    tail = Tails(trial, "e2e", 0).tail(0.95)
    assert tail.name == "e2e p95"
    assert tail.difference_s == pytest.approx(tail.candidate_s - tail.baseline_s)
    assert 0.0 < tail.difference_low_s < tail.difference_s < tail.difference_high_s
    assert tail.low < 1 / 1.2 < tail.high < 1.0
    assert not tail.thin
    assert Tails(trial[:40], "e2e", 0).tail(0.99).thin


def test_intervals_cover_the_planted_difference_of_tails(make_trial):
    """The candidate's times are those of the baseline times 1/1.1, but for the noise, so every quantile's ratio is 1.1."""
    trials = 60
    covered = 0
    for seed in range(trials):
        tail = Tails(make_trial(speedup=1.1, groups=12, prompts=8, block_noise=0.03, seed=seed), "e2e", seed).tail(0.95)
        covered += tail.low <= 1.1 <= tail.high
    assert covered >= 0.88 * trials


def test_gaps_are_those_of_the_record(make_record):
    record = make_record(tokens=20, per_chunk=3)
    record = msgspec.structs.replace(record, chunk_tokens=(*record.chunk_tokens[:2], 0, *record.chunk_tokens[3:]))
    values, weights = values_of(record, "itl")
    expected = record.token_gaps()
    assert values == pytest.approx([gap for gap, _ in expected])
    assert weights.tolist() == [tokens for _, tokens in expected]


def test_failures_reach_into_the_tail(make_record):
    seen = [
        Observation(arm=arm, group=n, block=n, record=make_record(f"p{n}", error="cut" if arm == CANDIDATE else None))
        for n in range(6)
        for arm in (BASELINE, CANDIDATE)
    ]
    tail = Tails(seen, "e2e", 0).tail(0.95)
    assert tail.candidate_s == math.inf
    assert tail.difference_s is None
    assert tail.high < 1e-6


def test_no_values_have_no_tail():
    tail = Tails([], "itl", 0).tail(0.99)
    assert (tail.baseline_s, tail.ratio, tail.low, tail.difference_s) == (None, None, None, None)
