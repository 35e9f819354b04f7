"""The form of a chunk in a tier: one object, in which nothing depends on where the chunk will stand."""

from collections.abc import Sequence

import msgspec

from netgain.serving.tiers.blending.keys import chunk_key
from netgain.serving.tiers.object import RAW, Expected, Part, Shape, StoredObject, pack, unpack

CHUNK = "chunk"  # the plane
LONGEST = 1 << 16  # tokens of one chunk
ARRANGEMENT = "K[token,head,dim] before RoPE V[token,head,dim]"
BYTES = {"bfloat16": 2, "float32": 4}


class ChunkForm(msgspec.Struct, frozen=True, kw_only=True):
    """How chunks of one model and tenant are stored: `root` as chunk_root gives it, numbers of `dtype` (one of BYTES)."""

    root: bytes
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

    @property
    def expected(self) -> Expected:
        return Expected(self.shape, self.root)

    def part(self, tokens: Sequence[int]) -> Part:
        return Part(chunk_key(self.root, tokens), 0, self.layers, CHUNK)

    def address(self, tokens: Sequence[int]) -> bytes:
        """Under what a tier keeps the chunk."""
        return self.part(tokens).address()

    def pack(self, tokens: Sequence[int], payload: bytes | memoryview) -> bytes:
        """The object's bytes; `payload` is, layer after layer, all keys and then all values of the tokens in order."""
        return pack(StoredObject(self.part(tokens), self.root, self.shape, len(tokens), RAW, payload))

    def unpack(self, tokens: Sequence[int], data: bytes | memoryview) -> memoryview:
        """The payload. Raises Refused for bytes that are not this very chunk."""
        return memoryview(unpack(data, self.address(tokens), self.expected).payload)
