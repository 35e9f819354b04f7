"""What is predicted to be sooner is chosen, and what is not known is learned rather than guessed."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.cost.link import LinkFit
from netgain.serving.tiers.choice import Choice, Why, choose, load_s

FAST = LinkFit(0.0001, 1e10, 0.0, 10)
SLOW = LinkFit(0.01, 1e7, 0.0, 10)
BYTES = 1_000_000


def prefill(blocks: int, block_s: float = 0.01) -> Callable[[int], float]:
    return lambda loaded: (blocks - loaded) * block_s


def test_a_fast_tier_is_loaded_whole_and_a_slow_one_is_not() -> None:
    fast = choose([0] * 40, [FAST], BYTES, prefill(50))
    assert (fast.blocks, fast.why) == (40, Why.LOAD)
    assert fast.full_s == pytest.approx(0.5)
    assert fast.warm_s == pytest.approx(0.1 + 3 * 0.0001 + 40 * BYTES / 1e10)
    slow = choose([0] * 40, [SLOW], BYTES, prefill(50))
    assert slow == Choice(0, slow.full_s, slow.full_s, Why.COMPUTE)


def test_a_prefix_is_loaded_up_to_where_the_slow_tier_begins() -> None:
    assert choose([0] * 7 + [1] * 20, [FAST, SLOW], BYTES, prefill(30)).blocks == 7


def test_loading_ends_where_computing_becomes_cheaper() -> None:
    link = LinkFit(0.0, BYTES / 0.01, 0.0, 10)
    found = choose([0] * 64, [link], BYTES, lambda loaded: sum(0.02 - 0.0002 * at for at in range(loaded, 64)))
    assert 44 <= found.blocks <= 56


def test_nothing_after_a_gap_is_loaded() -> None:
    assert choose([0, 0, None, 0], [FAST], BYTES, prefill(4)).blocks == 2
    assert choose([None, 0], [FAST], BYTES, prefill(2)) == Choice(0, 0.02, 0.02, Why.NOTHING_FOUND)
    assert choose([], [], BYTES, prefill(2)).why is Why.NOTHING_FOUND


def test_what_is_not_known_is_said() -> None:
    assert choose([0, 0], [None], BYTES, prefill(4)) == Choice(2, None, 0.04, Why.LEARN)
    assert choose([0], [LinkFit(0.1, None, 0.0, 1)], BYTES, prefill(4)) == Choice(1, None, 0.04, Why.LEARN)
    assert choose([0, 0], [FAST], BYTES, lambda _: None) == Choice(2, None, None, Why.NO_CURVE)


@given(
    st.lists(st.sampled_from([0, 1, None]), max_size=60),
    st.floats(0, 0.1),
    st.floats(1e6, 1e10),
    st.floats(1e-5, 0.1),
)
def test_the_choice_is_never_predicted_worse_than_all_or_nothing(
    places: list[int | None], latency_s: float, rate: float, block_s: float
) -> None:
    links = [LinkFit(latency_s, rate, 0.0, 5), LinkFit(2 * latency_s, rate / 3, 0.0, 5)]
    compute_s = prefill(len(places) + 3, block_s)
    choice = choose(places, links, BYTES, compute_s)
    assert choice.full_s is not None
    assert choice.warm_s is not None
    gap = next((index for index, place in enumerate(places) if place is None), len(places))
    whole_s = load_s([place for place in places[:gap] if place is not None], links, BYTES, 16)
    assert whole_s is not None
    assert choice.warm_s <= min(choice.full_s, whole_s + compute_s(gap)) + 1e-12
    assert 0 <= choice.blocks <= gap
