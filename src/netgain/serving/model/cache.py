"""The paged KV memory itself: allocated once, addressed by the block ids that the pool hands out."""

import numpy as np
import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig


class PagedKV:
    """Keys and values of every layer, [layers, blocks, block_tokens, kv_heads, head_dim] each; implements KVView.

    `dtype` is bfloat16 or float32. Raises UsageError when the memory cannot be had.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        if dtype not in (torch.bfloat16, torch.float32):
            raise UsageError(f"KV type {dtype} is not supported; supported: bfloat16, float32")
        if blocks < 1 or block_tokens < 1:
            raise UsageError(f"a KV pool of {blocks} blocks of {block_tokens} tokens holds nothing")
        self.blocks, self.block_tokens, self.dtype = blocks, block_tokens, dtype
        shape = (config.layers, blocks, block_tokens, config.kv_heads, config.head_dim)
        try:
            self._keys = _zeros(shape, dtype, torch.device(device))
            self._values = _zeros(shape, dtype, torch.device(device))
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

    def keys(self, layer: int) -> Tensor:
        return self._key_layers[layer]

    def values(self, layer: int) -> Tensor:
        return self._value_layers[layer]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the CPU the pages come from the system already zero, so that memory is taken as blocks are first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    stored = np.zeros(shape, dtype=np.uint16 if dtype is torch.bfloat16 else np.float32)
    return torch.from_numpy(stored).view(dtype)


def block_bytes(config: ModelConfig, block_tokens: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return config.kv_values_per_token * block_tokens * dtype.itemsize
