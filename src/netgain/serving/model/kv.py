"""The KV memory a model reads and writes, as it sees it: one pair of paged tensors per layer."""

import weakref
from typing import Protocol

import torch
from torch import Tensor

SCALE_BYTES = 4  # of the float32 that every int8 key or value vector of a head is multiplied by
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "int8": torch.int8}


class KVView(Protocol):
    """Paged cache: keys(layer) [blocks, kv_heads, head_dim, block_tokens], values(layer) [blocks, kv_heads, block_tokens,
    head_dim], so that what attention sums up lies side by side; bf16, fp32 or int8 (then with room for scales, see
    block_shapes)."""

    def keys(self, layer: int) -> Tensor: ...

    def values(self, layer: int) -> Tensor: ...


class LayersFrom:
    """The layers of a cache from the one numbered `first` on, as a KVView of its own; does not keep the cache alive."""

    def __init__(self, kv: KVView, first: int) -> None:
        self._kv, self._first = weakref.ref(kv), first

    def keys(self, layer: int) -> Tensor:
        return self._whole().keys(self._first + layer)

    def values(self, layer: int) -> Tensor:
        return self._whole().values(self._first + layer)

    def _whole(self) -> KVView:
        kv = self._kv()
        if kv is None:
            raise ValueError("the cache was given back")
        return kv


def block_shapes(
    kv_heads: int, head_dim: int, block_tokens: int, dtype: torch.dtype
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Shapes of one block of keys and of values. As int8, each token of a head is rounded to 127 steps of its largest
    magnitude; the float32 scales take the place of 4 more dimensions: behind the keys of a head those of all tokens, behind
    each token's values its own."""
    size = head_dim + (SCALE_BYTES if dtype == torch.int8 else 0)
    return (kv_heads, size, block_tokens), (kv_heads, block_tokens, size)


def key_scales(keys: Tensor) -> Tensor:
    """The scales of int8 keys [blocks, kv_heads, head_dim + 4, block_tokens] as float32 [blocks, kv_heads, block_tokens]: the
    same memory."""
    blocks, kv_heads, size, tokens = keys.shape
    return keys.view(blocks, kv_heads, size * tokens)[..., (size - SCALE_BYTES) * tokens :].view(torch.float32)


def value_scales(values: Tensor) -> Tensor:
    """The scales of int8 values [blocks, kv_heads, block_tokens, head_dim + 4] as float32 [blocks, kv_heads, block_tokens]: the
    same memory."""
    return values[..., -SCALE_BYTES:].view(torch.float32)[..., 0]
