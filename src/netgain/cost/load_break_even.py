"""From which length on a prefix is sooner loaded than computed, by link: the formula of the decision, read the other way."""

import msgspec

from netgain.cost.link import LinkFit
from netgain.cost.loading import GROUP_BLOCKS, LAYER_GROUPS, layered, load_s
from netgain.cost.step_cost import StepCost

SUFFIX_TOKENS = 16  # behind the prefix, which are computed in any case


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens`: the shortest prefix, of whole blocks of `block_tokens`, from which on each longer one, up to `longest`, is sooner
    loaded as well. None: the longest is not."""

    tokens: int | None
    block_tokens: int
    longest: int

    @property
    def word(self) -> str:
        """ "always" (from the first block on), "never" (up to the longest), or the tokens."""
        if self.tokens is None:
            return "never"
        return "always" if self.tokens <= self.block_tokens else str(self.tokens)


def break_even(
    link: LinkFit,
    cost: StepCost,
    token_bytes: float,
    longest: int,
    *,
    block_tokens: int = 16,
    chunk_tokens: int | None = None,
    lookup_s: float = 0.0,
) -> BreakEven:
    """For prefixes of up to `longest` tokens behind one link, each with a suffix of SUFFIX_TOKENS. `lookup_s` is spent on asking
    for it, `chunk_tokens` are computed in a step (None: the longest measured). Raises ValueError for a link whose bandwidth
    is not known."""
    if link.bytes_per_s is None:
        raise ValueError("the bandwidth of the link is not known")
    found: int | None = None
    for blocks in range(longest // block_tokens, 0, -1):
        warm_s = _warm_s(blocks, link, cost, token_bytes * block_tokens, block_tokens, chunk_tokens)
        if lookup_s + warm_s >= cost.prompt_s(0, blocks * block_tokens + SUFFIX_TOKENS, chunk_tokens):
            break
        found = blocks * block_tokens
    return BreakEven(tokens=found, block_tokens=block_tokens, longest=longest // block_tokens * block_tokens)


def _warm_s(
    blocks: int, link: LinkFit, cost: StepCost, block_bytes: float, block_tokens: int, chunk_tokens: int | None
) -> float:
    """With all blocks loaded, as many of them as pay by layers while the suffix is computed."""
    places, size = [0] * blocks, round(block_bytes)
    moved_s = load_s(places, [link], size, GROUP_BLOCKS)
    assert moved_s is not None, "the link is known"
    start = blocks * block_tokens
    suffix_s = cost.prompt_s(start, start + SUFFIX_TOKENS, chunk_tokens)
    hidden_s = layered(places, [link], size, GROUP_BLOCKS, LAYER_GROUPS, suffix_s).hidden_s
    return moved_s + suffix_s - hidden_s
