"""Joins chunks that were computed apart into the KV of one prompt, and computes anew what the selection says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from netgain.serving.model.cache import PagedKV
from netgain.serving.model.decoder import Decoder
from netgain.serving.model.selective import Narrow, SelectiveForward
from netgain.serving.runtime.blending.chunks import ChunkKV
from netgain.serving.tiers.blending.selection import Deviating, First, Selection, piece_end


class Placed(NamedTuple):
    """A chunk and the position of its first token."""

    chunk: ChunkKV
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.chunk.tokens)


class Joined(NamedTuple):
    """`logits` float32 [m, vocab] of the wanted tokens. Of `chunk_tokens` in chunks, `recomputed` is the mean over the layers of
    how many were computed all the same; `computed` counts the other rows, which always are. `rotation_s` went by while chunks
    were moved to their places (on a GPU, while that was set going)."""

    logits: Tensor
    chunk_tokens: int
    recomputed: float
    computed: int
    rotation_s: float


@torch.inference_mode()
def join(
    decoder: Decoder,
    forward: SelectiveForward,
    kv: PagedKV,
    table: Tensor,
    tokens: Sequence[int],
    placed: Sequence[Placed],
    selection: Selection,
    *,
    start: int = 0,
    wanted: int = 1,
) -> Joined:
    """Fill `kv` for the prompt `tokens` from position `start` on (what stands before is there), and give the logits of the
    last `wanted` tokens, which are computed whether a chunk holds them or not. What is computed anew is chosen piece by piece
    (see piece_end): a prompt may be given in several calls that end where pieces do, and the outcome is the same.

    `table` int32 holds the blocks of the whole prompt; a chunk may go on behind `tokens`. Raises ValueError for chunks that
    overlap or are not what stands in the prompt.
    """
    _check(tokens, placed)
    last = len(tokens) - wanted
    done = []
    while start < len(tokens):
        end = min(piece_end(start), len(tokens))
        asked = max(0, end - max(start, last))
        done.append(_piece(decoder, forward, kv, table, tokens[:end], placed, selection, start, asked))
        start = end
    return Joined(
        torch.cat([one.logits for one in done]),
        sum(one.chunk_tokens for one in done),
        sum(one.recomputed for one in done),
        sum(one.computed for one in done),
        sum(one.rotation_s for one in done),
    )


def _piece(
    decoder: Decoder,
    forward: SelectiveForward,
    kv: PagedKV,
    table: Tensor,
    tokens: Sequence[int],
    placed: Sequence[Placed],
    selection: Selection,
    start: int,
    wanted: int,
) -> Joined:
    """The tokens from `start` on, as one piece."""
    began_s, rotation_s = time.perf_counter(), 0.0
    device, layers = decoder.device, len(decoder.layers)
    last = len(tokens) - wanted
    pieces = [
        (one, max(one.start, start), min(one.end, last)) for one in placed if max(one.start, start) < min(one.end, last)
    ]
    of_chunks = torch.zeros(len(tokens), dtype=torch.bool)
    kept = torch.zeros(len(tokens), dtype=torch.bool)
    for one, first, end in pieces:
        of_chunks[first:end] = True
        if isinstance(selection, First):
            kept[first : min(end, one.start + selection.tokens)] = True
        if not selection.exact:
            _put(decoder, forward, kv, table, one, first, end)
    rotation_s = time.perf_counter() - began_s
    chunk_tokens = int(of_chunks.sum())
    chosen = torch.ones_like(kept) if isinstance(selection, Deviating) else ~of_chunks | kept
    chosen[:start] = False
    positions = chosen.nonzero()[:, 0]
    narrow: Narrow | None = None
    until, counts = 0, (int(kept.sum()),) * layers
    if isinstance(selection, Deviating):
        counts = selection.counts(chunk_tokens, layers)
        until = max((layer + 1 for layer in range(1, layers) if counts[layer] < counts[layer - 1]), default=0)
        narrow = _Narrowing(positions.to(device), of_chunks[positions].to(device), pieces, counts) if until else None
    if not len(positions):  # all of it stands in chunks, and nothing is computed anew
        nothing = torch.empty(0, decoder.config.vocab, device=device)
        return Joined(nothing, chunk_tokens, 0.0, 0, rotation_s)
    logits = forward.run(
        torch.tensor(tokens)[positions].to(device),
        positions.to(device),
        table,
        kv,
        kv.block_tokens,
        torch.arange(len(positions) - wanted, len(positions), device=device),
        narrow,
        until,
    )
    return Joined(logits, chunk_tokens, sum(counts) / layers, len(tokens) - start - chunk_tokens, rotation_s)


class _Narrowing:
    """Keeps, in each layer, the rows outside chunks and of the others those that deviate most from what the chunk holds."""

    def __init__(
        self, positions: Tensor, in_chunk: Tensor, pieces: Sequence[tuple[Placed, int, int]], counts: Sequence[int]
    ) -> None:
        self._in_chunk, self._counts = in_chunk, counts
        # where in what the chunks have of this piece, laid end to end, each row is found
        self._places = torch.zeros(len(positions), dtype=torch.int64, device=positions.device)
        self._chunks = [(one.chunk, slice(first - one.start, end - one.start)) for one, first, end in pieces]
        offset = 0
        for _, first, end in pieces:
            rows = (positions >= first) & (positions < end)
            self._places[rows] = positions[rows] - first + offset
            offset += end - first

    def __call__(self, layer: int, rows: Tensor, keys: Tensor, values: Tensor) -> Tensor | None:
        mine = self._in_chunk[rows]
        count = self._counts[layer]
        if layer == 0 or count >= int(mine.sum()):
            return None
        indexes = mine.nonzero()[:, 0]
        places = self._places[rows[indexes]]
        deviation = sum(
            _deviation(new[indexes], torch.cat([chunk[kind][layer, part] for chunk, part in self._chunks])[places])
            for kind, new in ((1, keys), (2, values))
        )
        order = torch.sort(deviation, descending=True, stable=True).indices[:count]  # ties to the earlier token
        keep = ~mine
        keep[indexes[order]] = True
        return keep.nonzero()[:, 0]


def _deviation(new: Tensor, old: Tensor) -> Tensor:
    """Squared distance per row, relative to the mean square, so that keys and values weigh alike. Turning both to the same
    position changes no distance, so keys are compared before RoPE."""
    scale = new.square().sum(1).mean().clamp_min(1e-30)
    return (new - old.float()).square().sum(1) / scale


def _put(
    decoder: Decoder, forward: SelectiveForward, kv: PagedKV, table: Tensor, one: Placed, first: int, end: int
) -> None:
    positions = torch.arange(first, end, device=decoder.device)
    plan = decoder.kernels.plan(positions, torch.zeros_like(positions), table[None], kv.block_tokens)
    turn = decoder.rotary.rows(positions)
    inside = slice(first - one.start, end - one.start)
    for layer in range(len(decoder.layers)):
        forward.place(
            layer, one.chunk.keys[layer, inside].float(), one.chunk.values[layer, inside].float(), turn, kv, plan
        )


def _check(tokens: Sequence[int], placed: Sequence[Placed]) -> None:
    end = 0
    for one in placed:
        if one.start < end:
            raise ValueError(f"the chunk at position {one.start} begins before the one before it ends, at {end}")
        end = one.end
        here = tuple(tokens[one.start : end])
        if here != one.chunk.tokens[: len(here)] or (not here and one.start < len(tokens)):
            raise ValueError(f"the prompt has other tokens than the chunk at position {one.start}")
