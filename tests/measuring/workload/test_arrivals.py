"""Arrivals depend on their settings alone, so that both arms of an experiment get the same ones."""

import statistics
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.errors import UsageError
from netgain.measuring.workload.arrivals import (
    Bursty,
    Closed,
    Constant,
    OpenLoop,
    Poisson,
    Recorded,
    at_rate,
    describe,
    most_at_once,
)


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


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_bursty_gaps_have_their_mean_and_spread(cv: float) -> None:
    offsets = Bursty(5.0, cv, 3).offsets_s(40_000)
    gaps = [later - earlier for earlier, later in zip((0.0, *offsets), offsets, strict=False)]
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(0.2 * cv, rel=0.05)


def test_a_recording_that_is_too_short_begins_again() -> None:
    arrivals = Recorded((0.0, 1.0, 3.0))
    assert arrivals.offsets_s(7) == (0.0, 1.0, 3.0, 4.5, 5.5, 7.5, 9.0)
    assert arrivals.rate_per_s == pytest.approx(3 / 4.5)


@given(
    st.sampled_from([Poisson(2.0, 1), Constant(2.0), Bursty(2.0, 2.5, 1), Recorded((0.0, 0.1, 0.2, 4.0), 2.0)]),
    st.floats(0.05, 200.0),
    st.integers(0, 5),
)
def test_a_shape_has_the_rate_it_is_given(shape: OpenLoop, rate: float, seed: int) -> None:
    offsets = at_rate(shape, rate, seed).offsets_s(4000)
    assert len(offsets) / offsets[-1] == pytest.approx(rate, rel=0.2)
    assert all(earlier <= later for earlier, later in pairwise(offsets))


def test_arrivals_are_told_in_words() -> None:
    assert describe(Poisson(2.5, 4)) == "open loop, Poisson 2.5 requests/s, seed 4"
    assert describe(Bursty(2.5, 3.0, 4)) == "open loop, bursty 2.5 requests/s (cv 3), seed 4"
    assert describe(Closed(8)) == "closed loop, 8 in flight"


def test_what_cannot_be_done_is_refused() -> None:
    for make in (
        lambda: Poisson(0.0),
        lambda: Poisson(float("inf")),
        lambda: Constant(-1.0),
        lambda: Bursty(1.0, 0.0),
        lambda: Closed(0),
        lambda: Recorded((0.0,)),
        lambda: at_rate(Constant(1.0), 0.0, 0),
    ):
        with pytest.raises(UsageError):
            make()


def test_most_at_once() -> None:
    assert most_at_once(Closed(8), 5, 1.0) == 5
    assert most_at_once(Constant(10.0), 1000, 0.95) == 10
    assert most_at_once(Poisson(400.0), 300, 60.0) == 300


@given(st.floats(0.1, 50.0), st.integers(0, 99), st.floats(0.01, 30.0))
def test_most_at_once_bounds_every_moment(rate: float, seed: int, lasting_s: float) -> None:
    offsets = Poisson(rate, seed).offsets_s(60)
    most = most_at_once(Poisson(rate, seed), 60, lasting_s)
    assert most == max(sum(at <= other <= at + lasting_s for other in offsets) for at in offsets)
