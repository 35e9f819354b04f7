"""The form of a chunk in a tier: one object, in which nothing depends on where the chunk will stand."""

from collections.abc import Sequence

import msgspec

from netgain.serving.tiers.blending.keys import chunk_key
from netgain.serving.tiers.object import RAW, Part, Shape, StoredObject

CHUNK = "chunk"  # the plane
LONGEST = 1 << 16  # tokens of one chunk
ARRANGEMENT = "K[token,head,dim] before RoPE V[token,head,dim]"
BYTES = {"bfloat16": 2, "float32": 4}


class ChunkForm(msgspec.Struct, frozen=True, kw_only=True):
    """How chunks of one model are stored, in numbers of `dtype` (one of BYTES). Roots are those of chunk_namespace."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        """Of one token in all layers, keys and values."""
        return self.layers * self.shape.token_bytes

    @property
    def shape(self) -> Shape:
        token_bytes = 2 * self.kv_heads * self.head_dim * BYTES[self.dtype]
        return Shape(self.kv_heads, self.head_dim, self.dtype, token_bytes, LONGEST, ARRANGEMENT)

    def part(self, root: bytes, tokens: Sequence[int]) -> Part:
        return Part(chunk_key(root, tokens), 0, self.layers, CHUNK)

    def stored(
        self, root: bytes, tokens: Sequence[int], payload: bytes | memoryview, dated: int | None = None
    ) -> StoredObject:
        """The object; `payload` is, layer after layer, all keys and then all values of the tokens in order, first computed at
        `dated`, in whole Unix seconds (None: when it is stored)."""
        return StoredObject(self.part(root, tokens), root, self.shape, len(tokens), RAW, payload, written_s=dated)
