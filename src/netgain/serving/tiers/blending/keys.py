"""Content addresses of chunks: KV of a text computed by itself, which has no parent and no position."""

from collections.abc import Sequence

import msgspec
import numpy as np
from blake3 import blake3

from netgain.serving.blocks.keys import Namespace

_DOMAIN = "netgain chunk KV 2: keys before RoPE, computed behind a lead that is left out"


def chunk_namespace(namespace: Namespace, lead: Sequence[int], dtype: str) -> Namespace:
    """The namespace of chunks of a model, from that of its prefixes. `lead` are the tokens that each chunk is computed behind,
    `dtype` the form of the stored numbers. Tenants are told apart by its roots, as they are by those of prefixes."""
    behind = ",".join(map(str, lead))
    return msgspec.structs.replace(namespace, numerics=f"{namespace.numerics};chunks in {dtype} behind {behind}")


def chunk_key(root: bytes, tokens: Sequence[int]) -> bytes:
    """32 bytes that depend on the root (of a chunk namespace and a salt) and every token. No chunk can be taken for a block of
    a prompt, nor the other way round: namespaces and the hashes' domains differ."""
    return blake3(root + np.asarray(tokens, dtype="<u4").tobytes(), derive_key_context=_DOMAIN).digest()
