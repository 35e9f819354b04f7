import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from netgain.serving.engine import noise
from netgain.serving.engine.noise import Lane, PositionNoise

VOCAB = 49152
IDS = np.arange(VOCAB)
# Every statistical test has fixed seeds, so it is either always green or always red; the floor only says how odd is too odd.
FLOOR = 1e-4


def uniforms(values):
    """Gumbel noise mapped back to uniform."""
    return np.exp(-np.exp(-values))


def test_gumbel_noise_follows_its_distribution():
    values = np.concatenate([noise.gumbel(seed, 0, 3, IDS) for seed in range(4)])
    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > FLOOR


def test_uniform_bins_are_equally_full():
    values = np.array([noise.uniform(11, 2, position, Lane.ACCEPT) for position in range(8_000)])
    counts = np.histogram(values, bins=100, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > FLOOR


@pytest.mark.parametrize("varied", ["seed", "choice", "position", "token"])
def test_neighbouring_arguments_give_independent_noise(varied):
    step = {name: int(name == varied) for name in ("seed", "choice", "position", "token")}
    first = uniforms(noise.gumbel(5, 1, 7, IDS))
    second = uniforms(noise.gumbel(5 + step["seed"], 1 + step["choice"], 7 + step["position"], IDS + step["token"]))
    table = np.histogram2d(first, second, bins=16, range=((0, 1), (0, 1)))[0]
    assert stats.chi2_contingency(table).pvalue > FLOOR


@pytest.mark.parametrize("varied", ["seed", "choice", "position"])
def test_noise_of_one_token_is_uniform_along_every_argument(varied):
    at = {"seed": 3, "choice": 0, "position": 40}
    values = [noise.gumbel(**{**at, varied: index}, token_ids=[17])[0] for index in range(5_000)]
    assert stats.kstest(values, stats.gumbel_r.cdf).pvalue > FLOOR
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05


def test_lanes_of_one_position_are_independent():
    accept = [noise.uniform(1, 0, position, Lane.ACCEPT) for position in range(8_000)]
    draw = [noise.uniform(1, 0, position, Lane.DRAW) for position in range(8_000)]
    table = np.histogram2d(accept, draw, bins=8, range=((0, 1), (0, 1)))[0]
    assert stats.chi2_contingency(table).pvalue > FLOOR


@given(
    seed=st.integers(),
    choice=st.integers(0, 100),
    position=st.integers(0, 10**6),
    size=st.integers(1, 300),
    data=st.data(),
)
def test_noise_of_a_token_does_not_depend_on_its_neighbours(seed, choice, position, size, data):
    ids = data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=size, max_size=size))
    together = noise.gumbel(seed, choice, position, ids)
    alone = [noise.gumbel(seed, choice, position, [token])[0] for token in ids]
    assert together.tolist() == alone


def test_seeds_of_any_size_and_sign_stay_apart():
    seeds = [0, 1, -1, 2**63, -(2**63), 2**64 - 1, 2**64, 2**64 + 1, -(2**64), 2**128, 2**200 + 1, -(10**40)]
    rows = {noise.gumbel(seed, 0, 0, [0, 1]).tobytes() for seed in seeds}
    assert len(rows) == len(seeds)


def test_seed_and_choice_and_position_are_not_interchangeable():
    triples = [(a, b, c) for a in range(6) for b in range(6) for c in range(6)]
    assert len({noise.uniform(*triple, lane) for triple in triples for lane in Lane}) == len(triples) * len(Lane)


def test_noise_is_the_same_on_every_machine():
    """Recorded outputs are replayed elsewhere, so the hash is part of the format."""
    assert noise.uniform(0, 0, 0, Lane.ACCEPT) == 0.8916019156119029
    assert noise.uniform(-1, 3, 1000, Lane.DRAW) == 0.5229307219888294
    assert noise.gumbel(42, 1, 7, [0, 49151]) == pytest.approx([2.5915471406457637, 1.0715458595731466], rel=1e-14)


def test_noise_is_finite_at_the_ends_of_the_hash():
    ends = np.array([0, 2**52 - 1], dtype=np.uint64)
    low, high = noise._gumbel(ends)
    assert -4 < low < -3.5
    assert 36 < high < 37


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("size", [1, 7, 8192, 8193, 20_000])
def test_pruned_draw_equals_the_argmax_over_everything(size, temperature):
    generator = np.random.default_rng(size)
    for position in range(20):
        scores = (generator.standard_normal(size) * generator.choice([0.0, 1.0, 6.0])).astype(np.float32)
        scores[generator.random(size) < 0.2] = -np.inf
        scores[generator.integers(size)] = 1.0
        offsets = (scores.astype(np.float64) - float(scores.max())) / temperature
        expected = int((offsets + noise.gumbel(9, 0, position, np.arange(size))).argmax())
        assert noise.draw(9, 0, position, Lane.TOKEN, scores, temperature) == expected
        ids = np.flatnonzero(scores > 0)
        some = int(ids[(offsets[ids] + noise.gumbel(9, 0, position, ids)).argmax()])
        assert noise.draw(9, 0, position, Lane.TOKEN, scores[ids], temperature, ids) == some


@pytest.mark.parametrize("scores", [[math.nan, 0.0], [0.0, math.nan], [-math.inf, -math.inf], [math.inf, 0.0]])
def test_drawing_from_broken_scores_is_refused(scores):
    with pytest.raises(ValueError, match="highest"):
        noise.draw(0, 0, 0, Lane.TOKEN, np.array(scores))


def test_accept_holds_with_the_given_probability_and_never_outside_it():
    noises = [PositionNoise(seed, 0) for seed in range(20)]
    for ratio in (0.0, 0.05, 0.5, 0.93, 1.0, 3.0):
        accepted = sum(noise.accept(position, ratio) for noise in noises for position in range(500))
        assert stats.binomtest(accepted, 10_000, min(1.0, ratio)).pvalue > FLOOR


def test_draw_follows_an_unnormalised_law_without_its_impossible_tokens():
    law = np.array([0.0, 0.3, 0.0, 0.6, 0.9, 0.2])
    source = PositionNoise(77, 1)
    counts = np.bincount([source.draw(position, law) for position in range(8_000)], minlength=len(law))
    assert counts[law == 0].sum() == 0
    expected = law / law.sum() * 8_000
    assert stats.chisquare(counts[law > 0], expected[law > 0]).pvalue > FLOOR


def test_draw_is_independent_of_accept_at_the_same_position():
    source = PositionNoise(3, 0)
    table = np.zeros((2, 3))
    for position in range(8_000):
        table[int(source.accept(position, 0.4)), source.draw(position, np.ones(3))] += 1
    assert stats.chi2_contingency(table).pvalue > FLOOR


@pytest.mark.parametrize("law", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [-0.5, 1.5]])
def test_drawing_from_what_is_no_law_is_refused(law):
    with pytest.raises(ValueError, match="cannot draw"):
        PositionNoise(0, 0).draw(4, np.array(law))


def test_noises_with_the_same_seed_and_choice_agree_and_keep_no_state():
    first, second = PositionNoise(8, 2), PositionNoise(8, 2)
    law = np.full(1000, 1e-3)
    forwards = [first.draw(position, law) for position in range(50)]
    backwards = [second.draw(position, law) for position in reversed(range(50))]
    assert forwards == backwards[::-1]
    assert forwards != [PositionNoise(8, 3).draw(position, law) for position in range(50)]
