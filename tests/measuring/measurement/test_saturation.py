"""The search on servers that are a function: it ends, brackets the truth, and does not trust a single window."""

import itertools
import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netgain.measuring.client.quantile import quantile
from netgain.measuring.measurement.saturation import MOST_VOID, Bracket, Rules, bracket, next_rate, windows_expected
from netgain.measuring.measurement.search import EVEN_RATE, drawn_at
from netgain.measuring.workload.arrivals import Constant, OpenLoop, Poisson


def searched(rules: Rules, holds: Callable[[float], bool | None]) -> tuple[dict[float, list[bool | None]], int]:
    outcomes: dict[float, list[bool | None]] = {}
    windows = 0
    while (rate := next_rate(outcomes, rules)) is not None:
        outcomes.setdefault(rate, []).append(holds(rate))
        windows += 1
        assert windows <= rules.most_windows
    return outcomes, windows


@given(st.floats(0.01, 1000.0), st.floats(0.05, 50.0), st.floats(0.02, 0.5), st.integers(1, 5))
def test_the_bracket_holds_the_truth_and_is_as_narrow_as_asked(
    true: float, start: float, precision: float, repeats: int
) -> None:
    rules = Rules(start_per_s=start, precision=precision, repeats=repeats, most_windows=200)
    outcomes, _ = searched(rules, lambda rate: rate <= true)
    found = bracket(outcomes)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= true < found.high
    assert found.high / found.low <= 1.0 + precision + 1e-9
    for end in (found.low, found.high):
        assert len(outcomes[end]) >= repeats // 2 + 1, "both ends are repeated"


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.floats(0.1, 100.0))
def test_noise_neither_hangs_nor_inverts_the_search(seed: int, true: float) -> None:
    source = random.Random(seed)
    rules = Rules(start_per_s=1.0)
    outcomes, windows = searched(rules, lambda rate: rate * source.lognormvariate(0.0, 0.15) <= true)
    found = bracket(outcomes)
    assert windows <= rules.most_windows
    if found.low is not None and found.high is not None:
        assert found.low < found.high


def test_one_lucky_window_does_not_decide() -> None:
    """Above the true rate the first window holds by luck; its repeats overturn it, and the bracket moves down."""
    rules = Rules(start_per_s=1.0)
    lucky: set[float] = set()

    def holds(rate: float) -> bool:
        if 4.0 < rate <= 4.5 and not lucky:
            lucky.add(rate)
            return True
        return rate <= 4.0

    outcomes, _ = searched(rules, holds)
    found = bracket(outcomes)
    assert lucky
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 4.0 < found.high


def test_a_server_that_never_holds_ends_the_search() -> None:
    outcomes, windows = searched(Rules(start_per_s=1.0, least_per_s=0.1), lambda rate: False)
    assert bracket(outcomes).low is None
    assert windows <= 7


def test_a_server_that_always_holds_ends_the_search() -> None:
    outcomes, windows = searched(Rules(start_per_s=1.0, most_per_s=16.0), lambda rate: True)
    assert bracket(outcomes).high is None
    assert windows <= 7


def waits_s(arrivals: OpenLoop, service_s: float, requests: int) -> list[float]:
    """From arrival to answer in a server that works on one request at a time (Lindley's recursion)."""
    free_s, found = 0.0, []
    for at_s in arrivals.offsets_s(requests):
        free_s = max(free_s, at_s) + service_s
        found.append(free_s - at_s)
    return found


def test_the_capacity_of_a_server_with_fixed_service_times_is_found() -> None:
    """M/D/1, 20 ms each, so 50/s at most; p95 of the time to the answer at most 200 ms. The truth is that of 100,000 requests."""
    service_s, limit_s, warm_up = 0.02, 0.2, 4
    low, high = 10.0, 50.0
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        late = quantile(sorted(waits_s(Poisson(middle, 1), service_s, 100_000)), 0.95)
        low, high = (middle, high) if late is not None and late <= limit_s else (low, middle)
    truth = math.sqrt(low * high)
    off, windows = [], []
    for seed in range(40):
        tried = itertools.count(seed * 1000)

        def holds(rate: float, tried: "itertools.count[int]" = tried) -> bool:
            requests = max(60, round(10.0 * rate))
            arrivals = drawn_at(Poisson(1.0), rate, next(tried), warm_up, requests)
            late = quantile(sorted(waits_s(arrivals, service_s, warm_up + requests)[warm_up:]), 0.95)
            return late is not None and late <= limit_s

        outcomes, count = searched(Rules(start_per_s=5.0), holds)
        found = bracket(outcomes)
        assert found.low is not None
        assert found.high is not None
        off.append(math.sqrt(found.low * found.high) / truth - 1.0)
        windows.append(count)
    assert sum(abs(one) <= 0.1 for one in off) >= 36, sorted(off)
    assert max(map(abs, off)) <= 0.2, sorted(off)
    assert statistics.median(windows) <= 14, sorted(windows)


def test_a_window_that_the_client_spoilt_is_tried_again() -> None:
    spoilt = iter([True, False] * 50)
    outcomes, windows = searched(Rules(start_per_s=1.0), lambda rate: None if next(spoilt) else rate <= 4.0)
    found = bracket(outcomes)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 4.0 < found.high
    assert windows <= 24
    outcomes, windows = searched(Rules(start_per_s=1.0), lambda rate: None if rate > 3.0 else True)
    assert bracket(outcomes) == Bracket(2.0, None)
    assert outcomes[4.0] == [None] * MOST_VOID, "given up there, and what held is kept"


def test_the_rate_of_drawn_arrivals_is_the_one_asked_for() -> None:
    for seed in range(20):
        offsets = drawn_at(Poisson(1.0), 8.0, seed, 5, 60).offsets_s(65)
        assert 59 / (offsets[-1] - offsets[5]) == pytest.approx(8.0, rel=EVEN_RATE + 0.005)
    assert drawn_at(Constant(1.0), 8.0, 0, 5, 60) == Constant(8.0)


def test_the_estimate_of_windows_is_near() -> None:
    rules = Rules(start_per_s=1.0)
    _, windows = searched(rules, lambda rate: rate <= 6.0)
    assert abs(windows - windows_expected(rules)) <= 2
