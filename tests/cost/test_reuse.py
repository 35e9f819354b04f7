"""One pass says for every cache size what a replay through an LRU cache of that size says."""

from collections import OrderedDict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.cost.reuse import reuse_curve


def replayed(prompts: Sequence[Sequence[int]], capacity: int) -> list[int]:
    """Leading blocks found for each prompt, by the definition of LRU."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for prompt in prompts:
        hits.append(next((index for index, key in enumerate(prompt) if key not in held), len(prompt)))
        for key in reversed(prompt):
            held[key] = None
            held.move_to_end(key)
        while len(held) > capacity:
            held.popitem(last=False)
    return hits


@given(st.lists(st.lists(st.integers(0, 12), max_size=8, unique=True), max_size=30), st.integers(1, 16))
def test_the_curve_is_what_a_replay_gives_at_each_size(prompts: list[list[int]], capacity: int) -> None:
    """Also for blocks that are no chain, where a hit needs all blocks before it."""
    curve = reuse_curve(prompts)
    assert curve.hits(capacity).tolist() == replayed(prompts, capacity)
    assert curve.hits(None).tolist() == replayed(prompts, 1000)
    assert curve.distinct == len({key for prompt in prompts for key in prompt})


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=20))
def test_a_larger_cache_never_gives_less(walks: list[list[int]]) -> None:
    chains = [[hash(tuple(walk[: end + 1])) for end in range(len(walk))] for walk in walks]
    curve = reuse_curve(chains)
    rates = [curve.at(size).hit_rate for size in (1, 2, 4, 8, 16, 1000)]
    assert rates == sorted(rates)
    assert rates[-1] == curve.at(None).hit_rate


def test_rates_of_blocks_and_of_requests_and_the_length_of_hits_are_told_apart() -> None:
    curve = reuse_curve([[1, 2, 3, 4], [1, 9], [1, 2, 3, 8]])
    whole = curve.at(None)
    assert (whole.hit_rate, whole.request_hit_rate, whole.mean_blocks) == (4 / 10, 2 / 3, 2.0)
    assert curve.at(1).mean_blocks == 1.0, "the head of a prompt stays longest"
    assert reuse_curve([[1], [2]]).at(None).mean_blocks is None


def test_of_no_blocks_nothing_is_said() -> None:
    with pytest.raises(ValueError, match="no prompt has a block"):
        reuse_curve([[], []]).at(None)
