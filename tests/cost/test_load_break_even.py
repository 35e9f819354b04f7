"""From which length on loading pays is where the formula of the decision says so, and is called always or never where it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.cost.link import LinkFit
from netgain.cost.load_break_even import SUFFIX_TOKENS, BreakEven, break_even
from netgain.cost.loading import GROUP_BLOCKS, LAYER_GROUPS, Why, choose, layered
from netgain.cost.step_cost import StepCost, StepPoint

TOKEN_BYTES = 20_000
TOKEN_S = 5e-4
COST = StepCost(
    points=tuple(
        StepPoint(batch=1, tokens=tokens, context=context, seconds=TOKEN_S * tokens)
        for tokens in (1, 512)
        for context in (0, 4096)
    )
)


def link(bytes_per_s: float, latency_s: float = 0.0) -> LinkFit:
    return LinkFit(latency_s, bytes_per_s, 0.0, 1)


def test_a_link_slower_than_computing_never_pays_and_a_quick_one_always_does() -> None:
    computing = TOKEN_BYTES / TOKEN_S  # bytes of KV that are computed in a second
    assert break_even(link(computing / 2), COST, TOKEN_BYTES, 2048) == BreakEven(
        tokens=None, block_tokens=16, longest=2048
    )
    assert break_even(link(computing / 2), COST, TOKEN_BYTES, 2048).word == "never"
    assert break_even(link(100 * computing), COST, TOKEN_BYTES, 2048).word == "always"


def test_latency_is_earned_back_by_length() -> None:
    """A token is computed in 0.5 ms and moved in 0.1 ms, so 20 ms are earned back by 50 tokens, and 70 ms by 175."""
    quick = link(TOKEN_BYTES / 1e-4, 0.02)
    assert break_even(quick, COST, TOKEN_BYTES, 2048).tokens == 64
    assert break_even(quick, COST, TOKEN_BYTES, 2048).word == "64"
    assert break_even(quick, COST, TOKEN_BYTES, 2048, lookup_s=0.05).tokens == 176


def test_a_link_that_was_never_measured_has_none() -> None:
    with pytest.raises(ValueError, match="not known"):
        break_even(LinkFit(0.001, None, 0.0, 1), COST, TOKEN_BYTES, 2048)


@given(st.floats(1e6, 1e10), st.floats(0.0, 0.05))
def test_from_there_on_the_policy_loads(bytes_per_s: float, latency_s: float) -> None:
    links, size = [link(bytes_per_s, latency_s)], TOKEN_BYTES * 16
    found = break_even(links[0], COST, TOKEN_BYTES, 1024)
    for tokens in range(found.tokens or 1025, 1025, 128):
        places, whole = [0] * (tokens // 16), tokens + SUFFIX_TOKENS
        decided = choose(
            places,
            links,
            size,
            lambda blocks, whole=whole: COST.prompt_s(16 * blocks, whole),
            GROUP_BLOCKS,
            lambda blocks, places=places, whole=whole: (
                layered(
                    places[:blocks], links, size, GROUP_BLOCKS, LAYER_GROUPS, COST.prompt_s(16 * blocks, whole)
                ).hidden_s
            ),
        )
        assert decided.why is Why.LOAD


@given(st.floats(1e6, 1e9), st.floats(0.0, 0.05), st.floats(1.0, 10.0))
def test_a_quicker_link_pays_no_later(bytes_per_s: float, latency_s: float, times: float) -> None:
    slow = break_even(link(bytes_per_s, latency_s), COST, TOKEN_BYTES, 1024).tokens
    quick = break_even(link(times * bytes_per_s, latency_s), COST, TOKEN_BYTES, 1024).tokens
    assert slow is None or (quick is not None and quick <= slow + 16)
