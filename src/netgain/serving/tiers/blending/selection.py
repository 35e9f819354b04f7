"""Which tokens of joined chunks are computed anew: nobody's (naive), the first of each chunk, or those whose keys and values
deviate most, fewer from layer to layer."""

import math

import msgspec

PIECE_TOKENS = 512
"""Prompts with chunks are computed in pieces that end at multiples of this position: one step holds one of them, so that a
long prompt stalls nobody for longer; and tokens are chosen among those of their piece, so that it does not matter how steps
came about."""

# Shares of the first layers that choose, relative to the ratio: a token that would matter later must not be lost at once.
_WIDER = (1.5, 1.3, 1.15, 1.05)


def piece_end(start: int) -> int:
    """The first position behind the piece that `start` stands in."""
    return start - start % PIECE_TOKENS + PIECE_TOKENS


class Naive(msgspec.Struct, frozen=True, tag="naive"):
    """Chunks are moved to their places and nothing of them is computed anew: what a chunk would have seen of the text before
    it is lost. The lower bound that the others are measured against."""

    @property
    def exact(self) -> bool:
        return False

    def __str__(self) -> str:
        return "naive"


class First(msgspec.Struct, frozen=True, tag="first"):
    """The first `tokens` of every chunk, in all layers: what stands at a beginning draws attention that it must not have
    inside a text (LegoLink, EPIC, arXiv:2410.15332)."""

    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"the first {self.tokens} tokens of a chunk are none: that is naive")

    @property
    def exact(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"first {self.tokens}"


class Deviating(msgspec.Struct, frozen=True, tag="deviating"):
    """`ratio` of the chunks' tokens, on the mean of the layers behind the first, chosen by how far their keys and values lie
    from the chunk's (CacheBlend, arXiv:2405.16444). The first layer computes all: there only the next one's deviation
    comes from. 1 is all of them in every layer, which is the prefill itself."""

    ratio: float

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"the ratio of recomputed tokens is {self.ratio}, expected above 0 and at most 1")

    @property
    def exact(self) -> bool:
        return self.ratio == 1

    def __str__(self) -> str:
        return f"deviating {self.ratio:.0%}"

    def counts(self, tokens: int, layers: int) -> tuple[int, ...]:
        """How many of the chunks' `tokens` go through each layer; never more than through the layer before."""
        behind = layers - 1
        wider = [min(1.0, self.ratio * factor) for factor in _WIDER[: max(0, behind - 1)]]
        rest = (self.ratio * behind - sum(wider)) / max(1, behind - len(wider))
        rest = min(max(rest, 0.0), wider[-1] if wider else 1.0)
        shares = [1.0, *wider, *[rest] * (behind - len(wider))]
        return tuple(min(tokens, math.ceil(share * tokens - 1e-9)) for share in shares)


Selection = Naive | First | Deviating
