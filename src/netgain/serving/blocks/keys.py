"""Content addresses of KV blocks: a chain of hashes over everything that decides the bits of a block."""

from collections.abc import Sequence

import msgspec
import numpy as np
from blake3 import blake3

_DOMAIN = "netgain KV namespace 1"  # another number whenever the meaning of a field or of the chain changes


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """What KV depends on besides tokens. `numerics` names kernel path and version: another path writes other bits."""

    weights: str
    tokenizer: str
    rope: str
    kv_dtype: str
    numerics: str
    adapter: str = ""

    def root(self, salt: bytes = b"") -> bytes:
        """The parent key of a first block; tenants with different salts never share a block."""
        return blake3(msgspec.msgpack.encode((self, salt)), derive_key_context=_DOMAIN).digest()


class KeyChain:
    """The keys of one request's full blocks, extended as tokens are committed. Keys are 32 bytes (BLAKE3)."""

    __slots__ = ("_block_tokens", "_tail", "keys", "root")

    def __init__(self, root: bytes, block_tokens: int) -> None:
        self.root = root
        self.keys: list[bytes] = []
        self._block_tokens = block_tokens
        self._tail: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Add committed tokens; every block they complete gets its key."""
        self._tail.extend(tokens)
        size = self._block_tokens
        whole = len(self._tail) // size * size
        if not whole:
            return
        data = np.asarray(self._tail[:whole], dtype="<u4").tobytes()
        del self._tail[:whole]
        parent = self.keys[-1] if self.keys else self.root
        for offset in range(0, len(data), 4 * size):
            parent = blake3(parent + data[offset : offset + 4 * size]).digest()
            self.keys.append(parent)
