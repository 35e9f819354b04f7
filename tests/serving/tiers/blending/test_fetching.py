"""Chunks that are not in memory: fetched where that is predicted to be sooner than computing them."""

import pytest

from netgain.cost.link import LinkFit
from netgain.cost.loading import Why
from netgain.serving.tiers.blending.fetching import FETCH_S, LEAST_WAIT_S, ChunkChoice, Missing, decided, slow_links
from netgain.serving.tiers.kv_store import Located

FAST = LinkFit(latency_s=0.001, bytes_per_s=1e9, error=0.0, samples=9)
SLOW = LinkFit(latency_s=0.001, bytes_per_s=1e5, error=0.0, samples=9)
CHUNK = Missing(tokens=100, bytes=100_000)


def measured(alone_s: float | None = 0.1) -> ChunkChoice:
    choice = ChunkChoice("measured")
    choice.prefill_s = lambda start, end: alone_s
    return choice


def test_each_chunk_is_fetched_or_computed_by_itself() -> None:
    choices = measured().choose([CHUNK] * 3, [0, 1, None], [FAST, SLOW])
    assert [choice.blocks for choice in choices] == [1, 0, 0]
    assert [choice.why for choice in choices] == [Why.LOAD, Why.COMPUTE, Why.NOTHING_FOUND]
    told = decided(choices, 1, 0.002, 0.001)
    assert (told.why, told.wanted, told.came, told.left) == ("load", 1, 1, 1)
    assert told.warm_s == pytest.approx(0.001 + 1e-4 + 0.1 + 0.1)
    assert told.full_s == pytest.approx(0.3)


def test_a_link_nobody_has_used_is_learnt_and_unknown_costs_are_told_as_such() -> None:
    (learn,) = measured().choose([CHUNK], [0], [None])
    (no_curve,) = measured(None).choose([CHUNK], [0], [FAST])
    assert (learn.blocks, learn.why, learn.warm_s) == (1, Why.LEARN, None)
    assert (no_curve.blocks, no_curve.why, no_curve.full_s) == (1, Why.NO_CURVE, None)
    assert decided([no_curve], 0, 0.0, 0.0).full_s is None


def test_chunks_that_come_together_share_the_latency() -> None:
    far = LinkFit(latency_s=0.03, bytes_per_s=1e9, error=0.0, samples=9)
    choice = measured(alone_s=0.01)
    assert [one.blocks for one in choice.choose([CHUNK] * 2, [0] * 2, [far])] == [0, 0]
    together = choice.choose([CHUNK] * 6, [0] * 6, [far])
    assert [one.blocks for one in together] == [1] * 6
    assert sum(one.warm_s or 0.0 for one in together) == pytest.approx(0.03 + 6e-4)


def test_while_one_prompt_learns_what_a_link_costs_the_others_compute() -> None:
    (one,) = measured().choose([CHUNK], [0], [None], lambda tier: True)
    assert (one.blocks, one.why) == (0, Why.LEARNING)


def test_what_computing_alone_really_took_replaces_the_prediction() -> None:
    choice = measured(alone_s=10.0)
    choice.computed(50, 0.0005)
    choice.computed(100, 0.001)
    assert choice.alone_s(200) == pytest.approx(0.002)
    assert choice.choose([CHUNK], [0], [SLOW])[0].why is Why.COMPUTE


def test_always_asks_nothing() -> None:
    choice = ChunkChoice("always")
    fetched, missing = choice.choose([CHUNK] * 2, [0, None], [SLOW])
    assert (fetched.blocks, fetched.why, missing.blocks) == (1, Why.ALWAYS, 0)
    assert choice.bound_s([fetched]) == FETCH_S


@pytest.mark.parametrize(("alone_s", "bound_s"), [(0.1, 3 * (0.001 + 1e-4)), (0.002, 0.002), (None, FETCH_S)])
def test_a_prompt_waits_no_longer_than_computing_takes(alone_s: float | None, bound_s: float) -> None:
    choice = measured(alone_s)
    assert choice.bound_s(choice.choose([CHUNK], [0], [FAST])) == pytest.approx(max(LEAST_WAIT_S, bound_s))


def test_of_a_tier_that_was_too_slow_one_chunk_measures_the_link_again() -> None:
    places = (1, 0, 1)
    choices = measured().choose([CHUNK] * 3, places, [FAST, SLOW])
    assert slow_links(choices, Located(places, (FAST, SLOW), 0.0)) in ({1: 0}, {1: 2})
