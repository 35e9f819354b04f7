"""Arrivals depend on their settings alone, so that both arms of an experiment get the same ones."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.errors import UsageError
from netgain.measuring.workload.arrivals import Closed, Constant, Poisson, describe, most_at_once, parse_arrivals


def test_same_seed_same_arrivals_and_another_seed_others() -> None:
    assert Poisson(3.0, 7).offsets_s(100) == Poisson(3.0, 7).offsets_s(100)
    assert Poisson(3.0, 7).offsets_s(100) != Poisson(3.0, 8).offsets_s(100)
    assert Poisson(3.0, 7).offsets_s(100)[:10] == Poisson(3.0, 7).offsets_s(10)


def test_known_poisson_arrivals_stay_as_they_are() -> None:
    """A change here would make old results incomparable."""
    assert Poisson(2.0, 1).offsets_s(3) == pytest.approx((0.0721455, 1.0122237, 1.7337081), abs=1e-6)


def test_poisson_gaps_have_mean_and_spread_of_an_exponential() -> None:
    offsets = Poisson(5.0, 3).offsets_s(20_000)
    gaps = [later - earlier for earlier, later in zip((0.0, *offsets), offsets, strict=False)]
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.03)
    assert statistics.pstdev(gaps) == pytest.approx(0.2, rel=0.05)


def test_constant_gaps_are_equal() -> None:
    assert Constant(4.0).offsets_s(5) == (0.0, 0.25, 0.5, 0.75, 1.0)


def test_texts_are_read() -> None:
    assert parse_arrivals("poisson:2.5", seed=4) == Poisson(2.5, 4)
    assert parse_arrivals("constant:10") == Constant(10.0)
    assert parse_arrivals(" closed:8 ") == Closed(8)
    assert describe(Poisson(2.5, 4)) == "open loop, Poisson 2.5 requests/s, seed 4"


@pytest.mark.parametrize(
    "text", ["", "poisson", "poisson:x", "poisson:0", "constant:-1", "closed:0", "closed:1.5", "poisson:inf"]
)
def test_what_cannot_be_done_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_arrivals(text)


def test_most_at_once() -> None:
    assert most_at_once(Closed(8), 5, 1.0) == 5
    assert most_at_once(Constant(10.0), 1000, 0.95) == 10
    assert most_at_once(Poisson(400.0), 300, 60.0) == 300


@given(st.floats(0.1, 50.0), st.integers(0, 99), st.floats(0.01, 30.0))
def test_most_at_once_bounds_every_moment(rate: float, seed: int, lasting_s: float) -> None:
    offsets = Poisson(rate, seed).offsets_s(60)
    most = most_at_once(Poisson(rate, seed), 60, lasting_s)
    assert most == max(sum(at <= other <= at + lasting_s for other in offsets) for at in offsets)
