"""The KV memory a model reads and writes, as it sees it: one pair of paged tensors per layer."""

from typing import Protocol

from torch import Tensor


class KVView(Protocol):
    """Paged cache: keys(layer) and values(layer) are [blocks, block_tokens, kv_heads, head_dim], bf16 or fp32."""

    def keys(self, layer: int) -> Tensor: ...

    def values(self, layer: int) -> Tensor: ...
