"""The search on servers that are a function: it ends, brackets the truth, and does not trust a single window."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from netgain.measuring.measurement.saturation import Rules, bracket, next_rate, windows_expected


def searched(rules: Rules, holds: "object") -> tuple[dict[float, list[bool]], int]:
    outcomes: dict[float, list[bool]] = {}
    windows = 0
    while (rate := next_rate(outcomes, rules)) is not None:
        outcomes.setdefault(rate, []).append(holds(rate))  # type: ignore[operator]
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


def test_the_estimate_of_windows_is_near() -> None:
    rules = Rules(start_per_s=1.0)
    _, windows = searched(rules, lambda rate: rate <= 6.0)
    assert abs(windows - windows_expected(rules)) <= 2
