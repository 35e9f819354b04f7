"""A percentile is one of the samples, and says when there are too few."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.measuring.client.quantile import is_thin, quantile, weighted_quantile


def test_p99_of_three_is_the_largest() -> None:
    assert quantile([12.0, 20.0, 47.0], 0.99) == 47.0
    assert quantile([12.0, 20.0, 47.0], 0.5) == 20.0
    assert quantile([5.0], 0.99) == 5.0
    assert quantile([], 0.5) is None


def test_failures_take_the_top() -> None:
    assert quantile([1.0, 2.0, 3.0, math.inf], 0.5) == 2.0
    assert quantile([1.0, 2.0, 3.0, math.inf], 0.95) == math.inf


@pytest.mark.parametrize(
    ("count", "share", "thin"),
    [(99, 0.99, True), (100, 0.99, False), (19, 0.95, True), (20, 0.95, False), (1, 0.5, True), (2, 0.5, False)],
)
def test_thin_percentiles_are_known(count: int, share: float, thin: bool) -> None:
    assert is_thin(count, share) is thin


@given(st.lists(st.integers(0, 20), min_size=1, max_size=50), st.sampled_from([0.05, 0.5, 0.9, 0.95, 0.99]))
def test_weights_are_repeated_samples(values: list[int], share: float) -> None:
    pairs = [(float(value), float(values.count(value))) for value in set(values)]
    assert weighted_quantile(pairs, share) == quantile([float(value) for value in values], share)
