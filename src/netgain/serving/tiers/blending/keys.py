"""Content addresses of chunks: KV of a text computed by itself, which has no parent and no position."""

from collections.abc import Sequence

import numpy as np
from blake3 import blake3

from netgain.serving.blocks.keys import Namespace

_DOMAIN = "netgain chunk KV 1: keys before RoPE, computed behind a lead that is left out"


def chunk_root(namespace: Namespace, lead: Sequence[int], dtype: str, salt: bytes = b"") -> bytes:
    """What the keys of chunks stand under. `lead` are the tokens that each chunk is computed behind, `dtype` the form of the
    stored numbers. No chunk can be taken for a block of a prompt, nor the other way round: the hashes' domains differ."""
    parts = (namespace.root(salt), np.asarray([len(lead), *lead], dtype="<u4").tobytes(), dtype.encode())
    return blake3(b"".join(parts), derive_key_context=_DOMAIN).digest()


def chunk_key(root: bytes, tokens: Sequence[int]) -> bytes:
    """32 bytes that depend on the root and every token."""
    return blake3(root + np.asarray(tokens, dtype="<u4").tobytes()).digest()
