"""A forward pass over chosen positions of one sequence, whose other positions have KV already, from wherever it came; the
choice may narrow from layer to layer by what the keys and values of a layer turn out to be."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from netgain.serving.model.decoder import Decoder
from netgain.serving.model.kernels.composed import feed_forward, product, turned, unturned
from netgain.serving.model.kernels.protocol import AttentionPlan, Stack
from netgain.serving.model.kv import KVView, LayersFrom

Narrow = Callable[[int, Tensor, Tensor, Tensor], Tensor | None]
"""(layer, rows, keys, values) -> which of the rows go on, or None for all. `rows` int64 [n] numbers the rows still there as
they were given at first; keys are those before RoPE, float32 [n, kv_heads * head_dim] like the values; the answer is
ascending indexes into `rows`. The KV of all n rows is written in this layer; in the next ones only that of those which go on."""


class SelectiveForward:
    """Runs a Decoder's layers over some rows of one sequence. With every row going on, a row has the bits that
    Decoder.forward gives it. Holds no request state; one run at a time."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._tails: dict[int, Stack] = {}

    @torch.inference_mode()
    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        table: Tensor,
        kv: KVView,
        block_tokens: int,
        wanted: Tensor,
        narrow: Narrow | None = None,
        until: int = 0,
    ) -> Tensor:
        """tokens, positions int64 [rows], positions ascending; table int32 [blocks] of the sequence; wanted int64 [m] numbers
        rows that `narrow` must never drop -> float32 logits [m, vocab], which m = 0 spares.

        `narrow` is asked in the layers 0..until-1, which run operation by operation; the others are one stack. The KV of
        every position up to the last row's must be in `kv` or be written by this run.
        """
        decoder = self._decoder
        kernels = decoder.kernels

        def planned(at: Tensor) -> AttentionPlan:
            return kernels.plan(at, torch.zeros_like(at), table[None], block_tokens)

        rows = torch.arange(len(tokens), device=tokens.device)
        x, plan = decoder.embed(tokens), planned(positions)
        cos, sin = decoder.rotary.rows(positions)
        for number in range(until if narrow else 0):
            attention, mlp = decoder.layers[number].halves
            keys, values = kv.keys(number), kv.values(number)
            qk, v = unturned(kernels, attention, x)
            q, k = turned(kernels, attention, qk, cos, sin)
            kernels.store_kv(k, v, keys, values, plan)
            kept = narrow(number, rows, qk[:, -v.shape[1] :], v) if narrow else None
            if kept is not None and len(kept) < len(rows):
                if not len(kept):
                    return x.new_empty(0, decoder.config.vocab, dtype=torch.float32)
                rows, x, q = rows[kept], x[kept], q[kept]
                cos, sin, positions = cos[kept], sin[kept], positions[kept]
                plan = planned(positions)
            mixed = kernels.attention(q, keys, values, plan, attention.heads, attention.window)
            x = product(kernels, mixed, attention.output).add_(x)
            x = feed_forward(kernels, mlp, x).add_(x)
        first = until if narrow else 0
        picked = torch.searchsorted(rows, wanted)
        if first < len(decoder.layers):
            view = kv if first == 0 else LayersFrom(kv, first)
            x = self._tail(first)(x, cos, sin, view, plan, picked)
        else:
            x = x[picked]
        return decoder.head(x) if len(wanted) else x.new_empty(0, decoder.config.vocab, dtype=torch.float32)

    def _tail(self, first: int) -> Stack:
        if first not in self._tails:
            halves = [half for layer in self._decoder.layers[first:] for half in layer.halves]
            self._tails[first] = self._decoder.kernels.stack(halves)
        return self._tails[first]

    @torch.inference_mode()
    def place(
        self, layer: int, keys: Tensor, values: Tensor, turn: tuple[Tensor, Tensor], kv: KVView, plan: AttentionPlan
    ) -> None:
        """Write keys as they are before RoPE and values, float32 [rows, kv_heads * head_dim], into a layer of `kv` at the
        positions of `plan`; `turn` is the rotary table's rows for them."""
        kernels = self._decoder.kernels
        k = kernels.rope(keys.contiguous(), self._decoder.config.kv_heads, *turn)
        kernels.store_kv(k, values.contiguous(), kv.keys(layer), kv.values(layer), plan)
