"""Intervals keep their level for requests that share their fate, and are not given where too few were seen."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.measuring.client.interval import effective_count, quantile_interval, rank_shares, share_interval


def ones(values: list[float]) -> list[list[tuple[float, float]]]:
    return [[(value, 1.0)] for value in values]


def autoregressive(count: int, correlation: float, source: random.Random) -> list[float]:
    """Standard normal values, each correlated with the one before."""
    values = [source.gauss(0.0, 1.0)]
    for _ in range(count - 1):
        values.append(correlation * values[-1] + math.sqrt(1 - correlation**2) * source.gauss(0.0, 1.0))
    return values


@pytest.mark.parametrize(("correlation", "count", "share"), [(0.0, 100, 0.5), (0.0, 200, 0.95), (0.8, 200, 0.5)])
def test_interval_holds_its_level(correlation: float, count: int, share: float) -> None:
    source = random.Random(2)
    true = 0.0 if share == 0.5 else 1.6448536
    hits = 0
    for _ in range(200):
        overlap = 1.0 / (1.0 - correlation)
        interval = quantile_interval(ones(autoregressive(count, correlation, source)), share, overlap)
        hits += interval is not None and interval[0] <= true <= interval[1]
    assert hits / 200 >= 0.92


def test_tokens_of_one_request_are_not_independent() -> None:
    """A hundred tokens each of forty requests say about forty things."""
    source = random.Random(5)
    speeds = [source.uniform(1.0, 2.0) for _ in range(40)]
    by_request = [[(speed, 100.0)] for speed in speeds]
    of_tokens, of_requests = quantile_interval(by_request, 0.5, 1.0), quantile_interval(ones(speeds), 0.5, 1.0)
    assert of_tokens is not None
    assert of_requests is not None
    assert of_tokens[1] - of_tokens[0] >= 0.7 * (of_requests[1] - of_requests[0])


def test_no_interval_from_too_few() -> None:
    assert quantile_interval([], 0.5, 1.0) is None
    assert quantile_interval(ones([1.0]), 0.5, 1.0) is None
    assert quantile_interval(ones([float(n) for n in range(60)]), 0.99, 1.0) is None
    assert quantile_interval(ones([float(n) for n in range(60)]), 0.5, overlap=20.0) is None, "three batches"


@given(st.lists(st.booleans(), min_size=8, max_size=300), st.floats(1.0, 20.0))
def test_never_worth_more_than_was_seen(hits: list[bool], overlap: float) -> None:
    seen = np.array(hits, dtype=np.float64)
    effective = effective_count(seen, np.ones_like(seen), overlap)
    assert effective is None or 0.0 < effective <= len(hits)


@given(st.floats(0.0, 1.0), st.floats(1.0, 5000.0))
def test_the_share_lies_in_its_interval(share: float, effective: float) -> None:
    low, high = share_interval(share, effective)
    assert 0.0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1.0


def test_known_intervals() -> None:
    assert share_interval(1.0, 59.0)[0] == pytest.approx(0.9394, abs=1e-3)
    assert share_interval(0.9, 10.0) == pytest.approx((0.5550, 0.9975), abs=1e-3)
    assert rank_shares(0.95, 100) == (0.89, 1.0)
    assert rank_shares(0.99, 200) is None
