"""What is known of joining chunks: what the server tells of it, and where chunks stand in the prompts that were recorded."""

from collections.abc import Mapping

import msgspec


class BlendingTold(msgspec.Struct, frozen=True, kw_only=True):
    """`enabled`: chunks are joined there. `ratio`: at which they are, or would be (None: none was set or calibrated);
    `recomputed` is the share of their tokens that is computed anew at it, in the mean of the layers. `source`: "set" or
    "calibrated". `says`: what the calibration found."""

    enabled: bool = False
    ratio: float | None = None
    recomputed: float | None = None
    source: str | None = None
    says: str | None = None


class ChunksSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks of one prompt: `texts` are digests, the same for the same text, and `tokens` how many each has. They stand from
    the token `first` on, and `behind` is the first position behind the last of them."""

    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    first: int
    behind: int


def blending_told(told: Mapping[str, str]) -> BlendingTold:
    """From what /v1/models says, as JSON; what cannot be read is nothing."""
    try:
        return msgspec.json.decode(told.get("blending") or "", type=BlendingTold)
    except msgspec.DecodeError:
        return BlendingTold()
