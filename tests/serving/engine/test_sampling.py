import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from netgain.errors import NetgainError, RequestRejected
from netgain.serving.engine import noise
from netgain.serving.engine.request import SamplingParams
from netgain.serving.engine.sampling import (
    GREEDY_TEMPERATURE,
    UnusableLogits,
    choose,
    choose_rows,
    is_greedy,
    law,
    law_rows,
    validate,
)

FLOOR = 1e-4
VOCAB = 49152


def params(**fields) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, **fields})


def floats(*values) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def slow_law(logits, temperature, top_k, top_p, min_p=0.0):
    """The documented order, the plain way: sort all, cut, cut, cut, renormalise."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[: top_k or None]
    weights = [math.exp((float(logits[token]) - float(logits[order[0]])) / temperature) for token in order]
    total, kept, mass = sum(weights), [], 0.0
    for token, weight in zip(order, weights, strict=True):
        kept.append((token, weight))
        mass += weight
        if top_p < 1 and mass >= top_p * total:
            break
    kept = [(token, weight) for token, weight in kept if weight >= min_p * kept[0][1]]
    probabilities = np.zeros(len(logits))
    for token, weight in kept:
        probabilities[token] = weight / sum(weight for _, weight in kept)
    return probabilities


logit_rows = st.lists(st.integers(-12, 12), min_size=1, max_size=200).map(lambda row: np.array(row, np.float32) / 4)


@given(logits=logit_rows, temperature=st.floats(0.05, 4), top_k=st.integers(0, 250), top_p=st.floats(0.01, 1))
def test_law_is_temperature_then_top_k_then_top_p_with_ties_to_the_lowest_id(logits, temperature, top_k, top_p):
    expected = slow_law(logits, temperature, top_k, top_p)
    actual = law(logits, params(temperature=temperature, top_k=top_k, top_p=top_p))
    # The two sum in different orders, so a cut that falls on a boundary to the last bit may keep one more or one less.
    if (actual > 0).sum() == (expected > 0).sum():
        assert np.allclose(actual, expected, rtol=1e-12)
        assert ((actual > 0) == (expected > 0)).all()
    else:
        boundary = np.cumsum(np.sort(slow_law(logits, temperature, top_k, 1.0))[::-1])
        assert np.abs(boundary - top_p).min() < 1e-12


@given(
    logits=logit_rows,
    temperature=st.floats(0.05, 4),
    top_k=st.integers(0, 250),
    top_p=st.sampled_from((1.0, 0.6)),
    min_p=st.floats(0, 1),
)
def test_min_p_comes_last_and_is_relative_to_the_most_likely(logits, temperature, top_k, top_p, min_p):
    chosen_with = params(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    actual = law(logits, chosen_with)
    assert actual.argmax() == logits.argmax()
    assert actual.sum() == pytest.approx(1)
    if top_p == 1:  # else a cut on a boundary to the last bit may differ, see above
        ratios = slow_law(logits, temperature, top_k, top_p) / slow_law(logits, temperature, top_k, top_p).max()
        if np.abs(ratios - min_p).min() > 1e-12:
            assert np.allclose(actual, slow_law(logits, temperature, top_k, top_p, min_p), rtol=1e-12)


@given(logits=logit_rows, temperature=st.floats(0.05, 4), top_k=st.integers(0, 250), top_p=st.floats(0.01, 1))
def test_choose_is_the_law_plus_gumbel_noise(logits, temperature, top_k, top_p):
    chosen_with = params(temperature=temperature, top_k=top_k, top_p=top_p, seed=5)
    probabilities = law(logits, chosen_with)
    with np.errstate(divide="ignore"):
        scores = np.log(probabilities) + noise.gumbel(5, 1, 9, np.arange(len(logits)))
    assert choose(logits, chosen_with, 1, 9) == scores.argmax()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.4},
        {"temperature": 1.7, "top_k": 4},
        {"top_p": 0.8},
        {"temperature": 0.9, "top_k": 6, "top_p": 0.7},
    ],
)
def test_frequencies_of_choose_follow_law(fields):
    logits = floats(1.0, -0.5, 2.0, 0.3, 0.3, -2.0, 1.4, 0.0)
    probabilities = law(logits, params(**fields))
    counts = np.bincount(
        [choose(logits, params(seed=seed, **fields), 0, position) for seed in range(10) for position in range(500)],
        minlength=len(logits),
    )
    assert counts[probabilities == 0].sum() == 0
    kept = probabilities > 0
    assert stats.chisquare(counts[kept], probabilities[kept] * counts.sum()).pvalue > FLOOR


def test_consecutive_positions_are_drawn_independently():
    logits = floats(0.0, 0.5, 1.0)
    tokens = [choose(logits, params(seed=4), 0, position) for position in range(6_000)]
    table = np.zeros((3, 3))
    np.add.at(table, (tokens[::2], tokens[1::2]), 1)
    assert stats.chi2_contingency(table).pvalue > FLOOR


def test_cutting_candidates_does_not_shift_the_noise_of_the_others():
    generator = np.random.default_rng(0)
    for position in range(200):
        logits = generator.standard_normal(500).astype(np.float32) * 3
        everything = choose(logits, params(seed=3), 0, position)
        for cut in (params(seed=3, top_k=40), params(seed=3, top_p=0.9), params(seed=3, top_k=60, top_p=0.95)):
            if law(logits, cut)[everything] > 0:
                assert choose(logits, cut, 0, position) == everything


def test_greedy_takes_the_highest_and_the_lowest_id_of_equals():
    assert choose(floats(0.0, 3.0, 3.0, 1.0), params(temperature=0), 0, 0) == 1
    assert law(floats(0.0, 3.0, 3.0, 1.0), params(temperature=0)).tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-300, 1e-12, 1e-6, GREEDY_TEMPERATURE])
def test_tiny_temperatures_are_greedy(temperature):
    logits = np.random.default_rng(1).standard_normal(VOCAB).astype(np.float32) * 5
    logits[[77, 4000]] = logits.max() + 1
    tiny = params(temperature=temperature)
    assert is_greedy(tiny)
    assert {choose(logits, tiny, 0, position) for position in range(5)} == {77}
    assert law(logits, tiny)[77] == 1


@pytest.mark.parametrize("temperature", [1.1e-5, 1e-4, 1e-3])
def test_small_temperatures_choose_the_clear_winner_without_overflow(temperature):
    logits = np.random.default_rng(1).standard_normal(VOCAB).astype(np.float32) * 1e4
    with np.errstate(all="raise", under="ignore"):
        assert choose(logits, params(temperature=temperature), 0, 3) == logits.argmax()
        assert law(logits, params(temperature=temperature))[logits.argmax()] == pytest.approx(1)


@pytest.mark.parametrize("top_k", [0, 8, 9, 10**7])
def test_top_k_from_the_vocabulary_up_keeps_everything(top_k):
    logits = np.linspace(0, 1, 8, dtype=np.float32)
    assert law(logits, params(top_k=top_k)).tolist() == law(logits, params()).tolist()


def test_min_p_1_keeps_what_is_as_likely_as_the_best():
    assert law(floats(0.1, 2.0, 0.5, 2.0), params(min_p=1)).tolist() == [0, 0.5, 0, 0.5]


@pytest.mark.parametrize("fields", [{"top_k": 1}, {"top_p": 0}, {"top_p": 1e-9}, {"top_k": 1, "top_p": 1e-9}])
def test_the_tightest_cut_keeps_exactly_the_greedy_token(fields):
    logits = floats(0.1, 2.0, 0.5, 2.0)
    assert law(logits, params(**fields)).tolist() == [0, 1, 0, 0]
    assert {choose(logits, params(**fields), 0, position) for position in range(20)} == {1}


def test_top_k_keeps_exactly_k_of_equal_tokens():
    assert law(floats(1, 1, 1, 1, 1), params(top_k=2)).tolist() == [0.5, 0.5, 0, 0, 0]


def test_top_p_is_taken_of_what_top_k_left():
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    assert law(logits, params(top_k=2, top_p=0.56)).tolist() == [1, 0, 0, 0]
    assert (law(logits, params(top_p=0.56)) > 0).tolist() == [True, True, False, False]


def test_top_p_on_a_flat_law_over_a_real_vocabulary():
    probabilities = law(np.zeros(VOCAB, dtype=np.float32), params(top_p=0.5))
    assert (probabilities > 0).sum() == VOCAB // 2
    assert probabilities[VOCAB // 2 :].sum() == 0


def test_minus_infinity_forbids_a_token():
    logits = floats(-math.inf, 0.0, -math.inf, 0.0)
    for fields in ({}, {"top_k": 3}, {"top_p": 0.999}):
        assert law(logits, params(**fields)).tolist() == [0, 0.5, 0, 0.5]
        assert {choose(logits, params(**fields), 0, position) for position in range(50)} == {1, 3}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("fields", [{"temperature": 0}, {}, {"top_k": 2}, {"top_p": 0.5}])
@pytest.mark.parametrize("size", [4, VOCAB])
def test_broken_logits_are_an_error_and_never_a_token(bad, fields, size):
    logits = np.full(size, bad if bad == -math.inf else 0.0, dtype=np.float32)
    logits[size // 2] = bad
    for question in (lambda: choose(logits, params(**fields), 0, 12), lambda: law(logits, params(**fields), 12)):
        with pytest.raises(UnusableLogits, match="position 12") as caught:
            question()
        assert isinstance(caught.value, NetgainError)


def test_rows_are_consecutive_positions():
    logits = np.random.default_rng(2).standard_normal((4, 100)).astype(np.float32)
    used = params(seed=6, top_k=20)
    assert choose_rows(logits, used, 1, 30) == tuple(choose(logits[row], used, 1, 30 + row) for row in range(4))
    assert law_rows(logits, used).tolist() == [law(row, used).tolist() for row in logits]


def test_law_sums_to_one_over_a_real_vocabulary():
    logits = np.random.default_rng(3).standard_normal(VOCAB).astype(np.float32) * 4
    for fields in ({}, {"temperature": 0.01}, {"top_k": 50}, {"top_p": 0.9}):
        total = sum(map(Fraction, law(logits, params(**fields)).tolist()))
        assert abs(float(total) - 1) < 1e-12


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "top_k": 0, "top_p": 0},
        {"temperature": 1e-300, "top_k": 10**7, "top_p": 1},
        {"seed": -(2**70), "stop_token_ids": (0, 99)},
        {"max_tokens": 1, "temperature": 1},
        {"max_tokens": 0, "prompt_logprobs": 20},
        {"max_tokens": 8, "min_tokens": 8, "min_p": 1, "logprobs": 0},
        {"repetition_penalty": 0.01, "presence_penalty": -2, "frequency_penalty": 2},
        {"logit_bias": ((0, -100), (7, 0.5), (99, 100.0))},
    ],
)
def test_legal_extremes_are_accepted(fields):
    validate(params(**fields), 100)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("temperature", -1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "0"),
        ("top_k", -1),
        ("top_k", 2.0),
        ("top_k", True),
        ("top_p", -0.1),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("seed", 1.0),
        ("stop_token_ids", (100,)),
        ("stop_token_ids", (-1,)),
        ("min_tokens", -1),
        ("min_tokens", 9),
        ("min_tokens", True),
        ("min_p", 2),
        ("min_p", -0.1),
        ("min_p", math.nan),
        ("min_p", "0.1"),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -3),
        ("logit_bias", ((100, 1.0),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", ((True, 1.0),)),
        ("logit_bias", ((5, math.inf),)),
        ("logit_bias", ((5, math.nan),)),
        ("logit_bias", ((5, 1e30),)),
        ("logit_bias", ((5, 1.0), (5, 2.0))),
        ("logit_bias", ((6, 1.0), (5, 2.0))),
        ("logprobs", 21),
        ("logprobs", 10**9),
        ("logprobs", -1),
        ("prompt_logprobs", 101),
        ("prompt_logprobs", True),
    ],
)
def test_illegal_values_are_rejected_by_name(parameter, value):
    with pytest.raises(RequestRejected, match=parameter) as caught:
        validate(params(**{parameter: value}), 100)
    assert caught.value.parameter == parameter
