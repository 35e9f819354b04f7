"""How many tokens of chunks go through each layer."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.tiers.blending.selection import Deviating, First, Naive


@given(st.floats(0.001, 1.0), st.integers(0, 5000), st.integers(1, 80))
def test_a_layer_never_computes_more_than_the_one_before_and_the_first_computes_all(ratio, tokens, layers):
    counts = Deviating(ratio).counts(tokens, layers)
    assert len(counts) == layers
    assert counts[0] == tokens
    assert all(after <= before for before, after in itertools.pairwise(counts))


@given(st.floats(0.001, 1.0), st.integers(2, 80))
def test_the_ratio_is_the_mean_of_the_layers_behind_the_first(ratio, layers):
    tokens = 10_000
    counts = Deviating(ratio).counts(tokens, layers)
    mean = sum(counts[1:]) / (layers - 1) / tokens
    assert mean == pytest.approx(ratio, abs=2e-4)


@given(st.integers(0, 5000), st.integers(1, 80))
def test_all_of_them_is_all_in_every_layer(tokens, layers):
    selection = Deviating(1.0)
    assert selection.exact
    assert selection.counts(tokens, layers) == (tokens,) * layers


def test_only_all_tokens_are_exact():
    assert not any(one.exact for one in (Naive(), First(10_000), Deviating(math.nextafter(1, 0))))


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.01, math.nan])
def test_a_ratio_that_is_none_is_refused(ratio):
    with pytest.raises(ValueError, match="expected above 0 and at most 1"):
        Deviating(ratio)


def test_the_first_no_tokens_is_called_naive():
    with pytest.raises(ValueError, match="naive"):
        First(0)
