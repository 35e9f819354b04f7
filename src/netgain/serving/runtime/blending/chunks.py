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
        """As ChunkForm.stored takes it."""
        both = torch.stack([self.keys, self.values], 1).contiguous().cpu()
        return both.view(torch.uint8).numpy().tobytes()


def chunk_dtype(kv_dtype: torch.dtype) -> str:
    """How chunks for a pool of this type are kept: int8 pools take them rounded once, when they are put in place."""
    return "float32" if kv_dtype == torch.float32 else "bfloat16"


def from_payload(tokens: Sequence[int], layers: int, dtype: str, payload: memoryview, device: torch.device) -> ChunkKV:
    """The chunk whose `payload` this is (see ChunkForm.stored)."""
    raw = torch.frombuffer(bytearray(payload), dtype=torch.uint8).view(_TORCH[dtype])
    both = raw.view(layers, 2, len(tokens), -1).to(device)
    return ChunkKV(tuple(tokens), both[:, 0], both[:, 1])


class GrowingChunk:
    """The chunk's KV as it is behind `lead` and nothing else, computed in memory of its own, from its beginning on as far as it
    is needed. `lead` is left out: it only takes the attention that the first token of a text draws, which would otherwise fall
    on the chunk's own first tokens. However it is cut, the numbers are the same."""

    def __init__(
        self,
        decoder: Decoder,
        forward: SelectiveForward,
        lead: Sequence[int],
        tokens: Sequence[int],
        kv_dtype: torch.dtype,
        block_tokens: int,
    ) -> None:
        self._decoder, self._forward = decoder, forward
        self._tokens, self._skipped, self._computed = [*lead, *tokens], len(lead), 0
        blocks = -(-len(self._tokens) // block_tokens)
        self._scratch = PagedKV(decoder.config, blocks, block_tokens, kv_dtype, decoder.device)
        self._table = torch.arange(blocks, dtype=torch.int32)
        width = decoder.config.kv_heads * decoder.config.head_dim
        shape = (len(decoder.layers), len(tokens), width)
        keys = torch.empty(shape, dtype=_TORCH[chunk_dtype(kv_dtype)], device=decoder.device)
        self.chunk = ChunkKV(tuple(tokens), keys, torch.empty_like(keys))

    @property
    def done(self) -> bool:
        return self._computed == len(self._tokens)

    def grow(self, until: int) -> int:
        """Have the chunk's first `until` tokens (at most all); how many of its tokens were computed for that."""
        begin, end = self._computed, min(self._skipped + until, len(self._tokens))
        if end <= begin:
            return 0
        device, layers = self._decoder.device, len(self._decoder.layers)
        skipped = max(0, self._skipped - begin)
        place = slice(begin + skipped - self._skipped, end - self._skipped)

        def take(layer: int, rows: Tensor, k: Tensor, v: Tensor) -> None:
            self.chunk.keys[layer, place], self.chunk.values[layer, place] = k[skipped:], v[skipped:]

        self._forward.run(
            torch.tensor(self._tokens[begin:end], device=device),
            torch.arange(begin, end, device=device),
            self._table,
            self._scratch,
            self._scratch.block_tokens,
            torch.arange(0, device=device),
            take,
            layers,
        )
        self._computed = end
        return end - begin - skipped


def compute_alone(
    decoder: Decoder,
    forward: SelectiveForward,
    lead: Sequence[int],
    tokens: Sequence[int],
    kv_dtype: torch.dtype,
    block_tokens: int,
) -> ChunkKV:
    """A whole GrowingChunk at once."""
    growing = GrowingChunk(decoder, forward, lead, tokens, kv_dtype, block_tokens)
    growing.grow(len(tokens))
    return growing.chunk
