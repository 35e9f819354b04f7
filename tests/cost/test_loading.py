"""What is predicted to be sooner is chosen, and what is not known is learned rather than guessed."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.cost.link import LinkFit
from netgain.cost.loading import MOVING, NOT_LAYERED, Choice, Layered, Why, choose, layered, load_s

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


def rate(block_s: float, latency_s: float = 0.0) -> LinkFit:
    return LinkFit(latency_s, BYTES / block_s, 0.0, 10)


def test_as_many_blocks_come_by_layers_as_pass_while_the_suffix_is_computed() -> None:
    slow = layered([0] * 64, [rate(0.01)], BYTES, 16, 4, pass_s=0.2005 / MOVING)
    assert slow == Layered(20, pytest.approx(0.2 * 3 / 4))
    assert layered([0] * 64, [rate(0.001)], BYTES, 16, 4, pass_s=0.2).blocks == 64


def test_blocks_come_whole_where_layers_would_gain_nothing() -> None:
    assert layered([0] * 64, [rate(0.01)], BYTES, 16, 1, 0.2) == NOT_LAYERED, "one group"
    assert layered([0] * 64, [None], BYTES, 16, 4, 0.2) == NOT_LAYERED, "the link is not known"
    assert layered([], [rate(0.01)], BYTES, 16, 4, 0.2) == NOT_LAYERED
    assert layered([0] * 64, [rate(0.01)], BYTES, 16, 4, 0.005) == NOT_LAYERED, "not a block passes in that time"
    assert layered([0] * 64, [rate(1e-5)], BYTES, 16, 4, 0.2) == NOT_LAYERED, "all of it is nearly nothing"
    assert layered([0] * 64, [rate(0.01)], BYTES, 16, 4, 0.2, share=0.01) == NOT_LAYERED, (
        "the step becomes as much longer"
    )


def test_only_blocks_of_one_tier_come_by_layers_together() -> None:
    assert layered([0] * 40 + [1] * 3, [rate(0.001), rate(0.01)], BYTES, 16, 4, 0.2).blocks == 3


@given(
    st.integers(1, 200),
    st.floats(0, 0.02),
    st.floats(1e-5, 0.05),
    st.integers(1, 16),
    st.integers(2, 16),
    st.floats(0, 2),
)
def test_what_comes_by_layers_comes_within_the_pass(
    blocks: int, latency_s: float, block_s: float, group: int, groups: int, pass_s: float
) -> None:
    found = layered([0] * blocks, [rate(block_s, latency_s)], BYTES, group, groups, pass_s)
    exchanges = groups * -(-found.blocks // (group * groups))  # each of as many bytes as `group` whole blocks have
    assert found.blocks * block_s + exchanges * latency_s <= pass_s * (1 + 1e-6)
    assert found.hidden_s <= found.blocks * block_s


def test_what_is_hidden_is_in_the_choice() -> None:
    apart = choose([0] * 40, [rate(0.004)], BYTES, prefill(50))
    overlapped = choose([0] * 40, [rate(0.004)], BYTES, prefill(50), hidden_s=lambda blocks: 0.001 * blocks)
    assert overlapped.hidden_s == pytest.approx(0.001 * overlapped.blocks)
    assert apart.warm_s is not None
    assert overlapped.warm_s == pytest.approx(apart.warm_s - overlapped.hidden_s)
    compute = choose([0] * 40, [SLOW], BYTES, prefill(50), hidden_s=lambda blocks: 0.001 * blocks)
    assert (compute.why, compute.hidden_s) == (Why.COMPUTE, 0.0)


def test_what_a_tier_sends_to_others_first_is_waited_for():
    """Alone, loading is sooner; behind enough of others it is not, and only their own tier counts."""
    alone = choose([0] * 40, [FAST, FAST], BYTES, prefill(40))
    assert alone.blocks == 40
    behind = choose([0] * 40, [FAST, FAST], BYTES, prefill(40), ahead={0: 40})
    waits_s = 40 * BYTES / FAST.bytes_per_s
    assert behind.warm_s == pytest.approx(alone.warm_s + waits_s)
    many = round(2 * alone.full_s * FAST.bytes_per_s / BYTES)
    assert choose([0] * 40, [FAST, FAST], BYTES, prefill(40), ahead={0: many}).blocks == 0
    assert choose([0] * 40, [FAST, FAST], BYTES, prefill(40), ahead={1: many}) == alone
