"""What a link costs is learned from its exchanges, whatever outliers there are; a shaped link costs what its shape says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.cost.link import LinkEstimate, LinkFit, ShapedLink


def learned(latency_s: float, rate: float, sizes: list[int], noise: float = 0.0, outliers: int = 0) -> LinkFit:
    random = np.random.default_rng(1)
    estimate = LinkEstimate()
    for index, size in enumerate(sizes):
        seconds = (latency_s + size / rate) * (1 + noise * random.standard_normal())
        estimate.add(size, seconds * (30 if index % len(sizes) < outliers else 1))
    fit = estimate.fit()
    assert fit is not None
    return fit


def test_nothing_is_known_before_the_first_exchange() -> None:
    assert LinkEstimate().fit() is None


@given(st.floats(1e-5, 0.1), st.floats(1e6, 1e10))
def test_latency_and_bandwidth_are_found_exactly_without_noise(latency_s: float, rate: float) -> None:
    fit = learned(latency_s, rate, [1000 * (1 + index) for index in range(30)])
    assert fit.predict_s(500_000) == pytest.approx(latency_s + 500_000 / rate, rel=1e-3)


def test_a_fifth_of_outliers_moves_the_prediction_little() -> None:
    sizes = [10**5 * (1 + index % 17) for index in range(60)]
    fit = learned(0.002, 1e8, sizes, noise=0.05, outliers=12)
    assert fit.predict_s(10**6) == pytest.approx(0.012, rel=0.15)


def test_sizes_all_alike_are_predicted_at_that_size() -> None:
    fit = learned(0.002, 1e8, [368_640] * 40, noise=0.02)
    assert fit.predict_s(368_640) == pytest.approx(0.002 + 368_640 / 1e8, rel=0.03)


def test_empty_exchanges_tell_the_latency_alone() -> None:
    fit = learned(0.004, 1e8, [0] * 5)
    assert fit.latency_s == pytest.approx(0.004)
    assert fit.predict_s(0) == pytest.approx(0.004)
    assert fit.predict_s(1) is None


def test_with_empty_exchanges_sizes_all_alike_give_the_bandwidth() -> None:
    fit = learned(0.004, 1e8, [0, 10**6] * 20)
    assert fit.bytes_per_s == pytest.approx(1e8, rel=0.01)


def test_misses_never_displace_the_bandwidth() -> None:
    fit = learned(0.004, 1e8, [10**6 * (1 + index) for index in range(10)] + [0] * 500)
    assert fit.bytes_per_s == pytest.approx(1e8, rel=0.01)


@pytest.mark.parametrize("large", [5_900_000, 100_000])
def test_one_late_exchange_of_another_size_does_not_tell_the_bandwidth_alone(large: int) -> None:
    random = np.random.default_rng(1)
    estimate = LinkEstimate()
    estimate.add(large, 3 * (0.0002 + large / 1e8))
    for index in range(63):
        size = (737_280, 786_432, 1_179_648)[index % 3]
        estimate.add(size, (0.0002 + size / 1e8) * random.lognormal(0, 0.1))
    fit = estimate.fit()
    assert fit is not None
    assert fit.error < 0.2
    assert fit.predict_s(23_600_000) == pytest.approx(0.236, rel=0.2)


def test_what_exchanges_of_another_size_told_outlasts_many_that_are_all_alike() -> None:
    """Layers come in small exchanges: what whole blocks cost is known all the same."""
    random = np.random.default_rng(1)
    estimate = LinkEstimate()
    for size in [369_000, 5_900_000, 5_900_000, 5_900_000] + [900_000 + 1000 * (index % 7) for index in range(150)]:
        estimate.add(size, (0.0012 + size / 1e10) * random.lognormal(0, 0.05))
    fit = estimate.fit()
    assert fit is not None
    assert fit.predict_s(5_900_000) == pytest.approx(0.0012 + 5_900_000 / 1e10, rel=0.2)


def test_a_link_that_changes_is_followed() -> None:
    estimate = LinkEstimate()
    for rate in (1e9, 1e7):
        for index in range(64):
            size = 10**5 * (1 + index % 10)
            estimate.add(size, size / rate)
    fit = estimate.fit()
    assert fit is not None
    assert fit.bytes_per_s == pytest.approx(1e7, rel=0.01)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(1e-9, 100.0)), min_size=1, max_size=70))
def test_any_exchanges_give_a_link_that_can_be_used(exchanges: list[tuple[int, float]]) -> None:
    estimate = LinkEstimate()
    for size, seconds in exchanges:
        estimate.add(size, seconds)
    fit = estimate.fit()
    assert fit is not None
    assert fit.latency_s >= 0
    predicted = fit.predict_s(10**6)
    assert (predicted is None) == all(size == 0 for size, _ in exchanges)
    assert predicted is None or 0 <= predicted < float("inf")


def test_a_shaped_link_passes_bytes_one_after_the_other() -> None:
    link = ShapedLink(latency_s=0.1, bytes_per_s=100.0)
    assert link.arrives_s(10.0, 50) == pytest.approx(10.6)
    assert link.arrives_s(10.0, 50) == pytest.approx(11.1)
    assert link.arrives_s(20.0, 0) == pytest.approx(20.1)


def test_a_burst_passes_at_once_after_idling() -> None:
    link = ShapedLink(latency_s=0.0, bytes_per_s=100.0, burst_bytes=50.0)
    assert link.arrives_s(10.0, 50) == pytest.approx(10.0)
    assert link.arrives_s(10.0, 100) == pytest.approx(11.0)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 1000)), min_size=1))
def test_a_shaped_link_is_never_faster_than_its_bandwidth(exchanges: list[tuple[float, int]]) -> None:
    link = ShapedLink(latency_s=0.0, bytes_per_s=1000.0)
    now_s = 0.0
    arrived_s = 0.0
    for gap_s, size in exchanges:
        now_s += gap_s
        arrived_s = max(arrived_s, link.arrives_s(now_s, size))
    assert arrived_s * 1000.0 >= sum(size for _, size in exchanges) - 1e-6


@pytest.mark.parametrize("shape", [(-1.0, 1.0, 0.0), (0.0, 0.0, 0.0), (0.0, 1.0, -1.0)])
def test_an_impossible_shape_is_an_error(shape: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="no link has"):
        ShapedLink(*shape)
