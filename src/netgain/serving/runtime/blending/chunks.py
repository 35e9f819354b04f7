"""Chunks as tensors: computed by themselves, and read from and written as what a tier keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from netgain.serving.model.cache import PagedKV
from netgain.serving.model.decoder import Decoder
from netgain.serving.model.selective import SelectiveForward

_TORCH = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class ChunkKV(NamedTuple):
    """Keys before RoPE and values of one chunk, [layers, tokens, kv_heads * head_dim] each."""

    tokens: tuple[int, ...]
    keys: Tensor
    values: Tensor

    def payload(self) -> bytes:
        """As ChunkForm.pack takes it."""
        both = torch.stack([self.keys, self.values], 1).contiguous().cpu()
        return both.view(torch.uint8).numpy().tobytes()


def chunk_dtype(kv_dtype: torch.dtype) -> str:
    """How chunks for a pool of this type are kept: int8 pools take them rounded once, when they are put in place."""
    return "float32" if kv_dtype == torch.float32 else "bfloat16"


def from_payload(tokens: Sequence[int], layers: int, dtype: str, payload: memoryview, device: torch.device) -> ChunkKV:
    """The chunk whose `payload` this is (see ChunkForm.unpack)."""
    raw = torch.frombuffer(bytearray(payload), dtype=torch.uint8).view(_TORCH[dtype])
    both = raw.view(layers, 2, len(tokens), -1).to(device)
    return ChunkKV(tuple(tokens), both[:, 0], both[:, 1])


def compute_alone(
    decoder: Decoder,
    forward: SelectiveForward,
    lead: Sequence[int],
    tokens: Sequence[int],
    kv_dtype: torch.dtype,
    block_tokens: int,
) -> ChunkKV:
    """The chunk's KV as it is behind `lead` and nothing else, in memory of its own. `lead` is left out: it only takes the
    attention that the first token of a text draws, which would otherwise fall on the chunk's own first tokens."""
    all_tokens = [*lead, *tokens]
    device, layers, skipped = decoder.device, len(decoder.layers), len(lead)
    blocks = -(-len(all_tokens) // block_tokens)
    scratch = PagedKV(decoder.config, blocks, block_tokens, kv_dtype, device)
    width = decoder.config.kv_heads * decoder.config.head_dim
    dtype = _TORCH[chunk_dtype(kv_dtype)]
    keys = torch.empty(layers, len(tokens), width, dtype=dtype, device=device)
    values = torch.empty_like(keys)

    def take(layer: int, rows: Tensor, k: Tensor, v: Tensor) -> None:
        keys[layer], values[layer] = k[skipped:], v[skipped:]

    forward.run(
        torch.tensor(all_tokens, device=device),
        torch.arange(len(all_tokens), device=device),
        torch.arange(blocks, dtype=torch.int32),
        scratch,
        block_tokens,
        torch.tensor([len(all_tokens) - 1], device=device),
        take,
        layers,
    )
    return ChunkKV(tuple(tokens), keys, values)
