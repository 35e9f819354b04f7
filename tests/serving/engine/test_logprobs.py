import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.engine.logprobs import score

quarters = st.integers(-40, 40).map(lambda number: number / 4)


@given(st.lists(st.lists(quarters, min_size=9, max_size=9), min_size=1, max_size=40), st.integers(0, 20), st.data())
def test_scores_are_the_log_softmax_sorted_with_ties_to_the_lowest_id(table, k, data):
    tokens = [data.draw(st.integers(0, 8)) for _ in table]
    entries = score(np.array(table, dtype=np.float32), tokens, k).entries()
    for row, token, entry in zip(table, tokens, entries, strict=True):
        total = math.log(math.fsum(math.exp(value) for value in row))
        assert entry.logprob == pytest.approx(row[token] - total, abs=1e-12)
        order = sorted(range(9), key=lambda number: (-row[number], number))[:k]
        assert [number for number, _ in entry.top] == order
        assert [value for _, value in entry.top] == pytest.approx([row[number] - total for number in order], abs=1e-12)


def test_a_row_has_the_same_bits_alone_and_among_others():
    logits = np.random.default_rng(1).standard_normal((37, 49152)).astype(np.float32) * 5
    tokens = np.arange(37) * 7
    together = score(logits, tokens, 5).entries()
    for row in (0, 15, 16, 36):
        assert score(logits[row : row + 1], tokens[row : row + 1], 5).entries() == together[row : row + 1]


def test_a_flat_law_lists_the_lowest_ids():
    (entry,) = score(np.zeros((1, 1000), dtype=np.float32), [999], 3).entries()
    assert entry.top == ((0, -math.log(1000)), (1, -math.log(1000)), (2, -math.log(1000)))
    assert entry.logprob == -math.log(1000)


def test_what_the_model_forbids_has_minus_infinity():
    (entry,) = score(np.array([[0.0, -math.inf]], dtype=np.float32), [1], 2).entries()
    assert entry.logprob == -math.inf
    assert entry.top == ((0, 0.0), (1, -math.inf))


def test_large_logits_do_not_overflow():
    with np.errstate(all="raise", under="ignore"):
        (entry,) = score(np.array([[3e38, 3e38, -3e38]], dtype=np.float32), [1], 1).entries()
    assert entry.logprob == pytest.approx(-math.log(2), abs=1e-3) or entry.logprob == 0.0
