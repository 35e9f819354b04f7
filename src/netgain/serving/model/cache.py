"""The paged KV memory itself: allocated once, addressed by the block ids that the pool hands out."""

import math

import numpy as np
import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.kv import DTYPES, block_shapes


class PagedKV:
    """Keys and values of every layer, [layers, blocks, ...] each with blocks as in kv.py; implements KVView.

    `dtype` is bfloat16, float32 or int8. Raises UsageError when the memory cannot be had.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        if dtype not in DTYPES.values():
            raise UsageError(f"KV type {dtype} is not supported; supported: bfloat16, float32, int8")
        if dtype == torch.int8 and (config.head_dim % 4 or block_tokens % 4):
            raise UsageError(
                f"int8 KV needs heads and blocks of a multiple of 4, not {config.head_dim} dimensions and {block_tokens} tokens: "
                "use kv_dtype bf16"
            )
        if blocks < 1 or block_tokens < 1:
            raise UsageError(f"a KV pool of {blocks} blocks of {block_tokens} tokens holds nothing")
        self.blocks, self.block_tokens, self.dtype = blocks, block_tokens, dtype
        key_block, value_block = block_shapes(config.kv_heads, config.head_dim, block_tokens, dtype)
        try:
            self._keys = _zeros((config.layers, blocks, *key_block), dtype, torch.device(device))
            self._values = _zeros((config.layers, blocks, *value_block), dtype, torch.device(device))
        except (RuntimeError, MemoryError) as error:
            wanted = blocks * block_bytes(config, block_tokens, dtype)
            raise UsageError(
                f"cannot allocate {wanted / 2**20:.0f} MiB for the KV pool; ask for fewer blocks"
            ) from error
        self._key_layers: list[Tensor] = list(self._keys)
        self._value_layers: list[Tensor] = list(self._values)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    def raw(self) -> tuple[Tensor, Tensor]:
        """The same memory as bytes: keys and values, uint8 [layers, blocks, bytes of a block in a layer]."""
        return tuple(part.view(torch.uint8).flatten(2) for part in (self._keys, self._values))  # type: ignore[return-value]

    def keys(self, layer: int) -> Tensor:
        return self._key_layers[layer]

    def values(self, layer: int) -> Tensor:
        return self._value_layers[layer]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the CPU the pages come from the system already zero, so that memory is taken as blocks are first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    stored = np.zeros(shape, dtype={2: np.uint16, 4: np.float32, 1: np.int8}[dtype.itemsize])
    return torch.from_numpy(stored).view(dtype)


def block_bytes(config: ModelConfig, block_tokens: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    shapes = block_shapes(config.kv_heads, config.head_dim, block_tokens, dtype)
    return config.layers * sum(math.prod(shape) for shape in shapes) * dtype.itemsize
