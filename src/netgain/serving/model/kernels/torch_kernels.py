"""The kernels in plain torch: the oracle for the compiled ones, and the path for machines without a compiler.

Invariance is by construction: sums are either elementwise additions in a fixed tree, or exact (products of small integers
in float32), or matrix products of one fixed shape (padded tiles of 16 rows), whose per-row bits are checked when packing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from netgain.serving.model.kernels.blocks import split_q4_0, split_q4_1, split_q8_0
from netgain.serving.model.kernels.composed import ComposedStack
from netgain.serving.model.kernels.protocol import Activations, AttentionPlan, Halves, Reduce, Stack, Weight
from netgain.serving.model.kernels.torch_products import (
    DenseWeight,
    GroupedWeight,
    multiplied,
    packed_dense,
    packed_groups,
    rows_of,
)
from netgain.serving.model.kv import key_scales, value_scales
from netgain.serving.model.quantise import q4_1

VERSION = 2
WINDOW_TILE = 128  # places whose keys windowed attention takes together, aligned to absolute position
ATTENTION_FLOATS = 1 << 22  # temporary elements per slice of rows in attention


@dataclass(frozen=True)
class SegmentRows:
    """Rows of one segment: `rows` indexes the batch, `positions` their places, `blocks` the cache blocks they may read."""

    rows: Tensor
    positions: Tensor
    blocks: Tensor
    context: int


@dataclass(frozen=True)
class TorchPlan:
    """`blocks` and `offsets` say where in the cache every row's place lies."""

    blocks: Tensor
    offsets: Tensor
    segments: tuple[SegmentRows, ...]
    block_tokens: int


class TorchKernels:
    """Kernels on any torch device. Holds no state but the device; safe to share between threads."""

    def __init__(self, device: torch.device | str = "cpu", note: str | None = None) -> None:
        self.device = torch.device(device)
        self.name = self.build = f"torch-{torch.__version__}-{self.device.type}-v{VERSION}"
        self.note = note

    def pack_dense(self, weight: Tensor, dtype: torch.dtype, activations: Activations = "fp32") -> DenseWeight:
        return packed_dense(weight.to(self.device, dtype), activations)

    def pack_q4_0(self, blocks: Tensor, shape: tuple[int, int], activations: Activations = "int8") -> GroupedWeight:
        return packed_groups(split_q4_0(blocks, shape), shape, self.device, activations)

    def pack_q4_1(self, blocks: Tensor, shape: tuple[int, int], activations: Activations = "int8") -> GroupedWeight:
        return packed_groups(split_q4_1(blocks, shape), shape, self.device, activations)

    def pack_q8_0(self, blocks: Tensor, shape: tuple[int, int], activations: Activations = "int8") -> GroupedWeight:
        return packed_groups(split_q8_0(blocks, shape), shape, self.device, activations)

    def quantise_q4_1(self, groups: Tensor) -> Tensor:
        return q4_1(groups)

    def linear(self, x: Tensor, weight: Weight, out: Tensor | None = None) -> Tensor:
        result = multiplied(x, cast(DenseWeight | GroupedWeight, weight))
        return result if out is None else out.copy_(result)

    def embed(self, tokens: Tensor, weight: Weight) -> Tensor:
        return rows_of(cast(DenseWeight | GroupedWeight, weight), tokens)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        mean = _tree_sum(x * x, -1) / x.shape[-1]
        return x * (1.0 / torch.sqrt(mean + eps)).unsqueeze(-1) * weight

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return gate / (1.0 + exp(-gate)) * up

    def rope(self, x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.view(len(x), heads, -1).chunk(2, dim=-1)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).view(x.shape)

    def argmax(self, x: Tensor) -> Tensor:
        highest, places = x.max(dim=1)  # the lowest index on ties; NaN counts as the highest
        return places.masked_fill(~highest.isfinite(), -1)

    def stack(self, blocks: Halves, reduce: Reduce | None = None, taps: Sequence[int] = ()) -> Stack:
        return ComposedStack(self, blocks, reduce, taps)

    def plan(self, positions: Tensor, segment_of_row: Tensor, block_tables: Tensor, block_tokens: int) -> TorchPlan:
        positions, segment_of_row = positions.cpu().long(), segment_of_row.cpu().long()
        tables = block_tables.cpu().long()
        segments = []
        for segment in sorted(set(segment_of_row.tolist())):
            rows = (segment_of_row == segment).nonzero().flatten()
            context = int(positions[rows].max()) + 1
            needed = -(-context // block_tokens)
            used = tables[segment, :needed]
            if len(used) < needed or int(used.min()) < 0:
                raise ValueError(f"the block table of segment {segment} ends before its position {context - 1}")
            places = (positions[rows].to(self.device), used.to(self.device))
            segments.append(SegmentRows(rows.to(self.device), *places, context))
        blocks = tables[segment_of_row, positions // block_tokens].to(self.device)
        offsets = (positions % block_tokens).to(self.device)
        return TorchPlan(blocks, offsets, tuple(segments), block_tokens)

    def store_rows(self, x: Tensor, plane: Tensor, plan: AttentionPlan) -> None:
        placed = cast(TorchPlan, plan)
        plane[placed.blocks, placed.offsets] = x.to(plane.dtype)

    def store_kv(
        self, keys: Tensor, values: Tensor, cache_keys: Tensor, cache_values: Tensor, plan: AttentionPlan
    ) -> None:
        placed = cast(TorchPlan, plan)
        blocks, offsets = placed.blocks, placed.offsets
        kv_heads = cache_keys.shape[1]
        k, v = (new.view(len(new), kv_heads, -1) for new in (keys, values))
        dim = k.shape[-1]
        if cache_keys.dtype == torch.int8:
            k, key_scale = _round_rows(k)
            v, value_scale = _round_rows(v)
            key_scales(cache_keys)[blocks, :, offsets] = key_scale
            value_scales(cache_values)[blocks, :, offsets] = value_scale
        cache_keys[blocks, :, :dim, offsets] = k.to(cache_keys.dtype)
        cache_values[blocks, :, offsets, :dim] = v.to(cache_values.dtype)

    def attention(
        self,
        q: Tensor,
        cache_keys: Tensor,
        cache_values: Tensor,
        plan: AttentionPlan,
        heads: int,
        window: int | None = None,
    ) -> Tensor:
        if window is not None and window < 1:
            raise ValueError(f"a window of {window} places shows a row nothing")
        out = torch.empty_like(q)
        kv_heads, dim = cache_keys.shape[1], q.shape[1] // heads
        for segment in cast(TorchPlan, plan).segments:
            keys, values = _read(cache_keys, cache_values, segment.blocks, segment.context, dim)
            at_once = max(1, ATTENTION_FLOATS // (segment.context * heads * dim))
            for rows, positions in zip(
                torch.split(segment.rows, at_once), torch.split(segment.positions, at_once), strict=True
            ):
                grouped = q[rows].view(len(rows), kv_heads, heads // kv_heads, dim)
                if window is None:
                    attended = _attend(grouped, keys, values, positions)
                else:
                    attended = _attend_window(grouped, keys, values, positions, window)
                out[rows] = attended.view(len(rows), -1)
        return out


def exp(x: Tensor) -> Tensor:
    """e**x in float32 by elementwise IEEE operations only, so that no element's bits depend on its place in a vector.

    Relative error below 2e-7; 0 below -87.3, saturates at e**88.3. The compiled kernels repeat these very steps.
    """
    clamped = x.clamp(-87.3, 88.3)
    n = torch.round(clamped * 1.44269504)
    r = (clamped - n * 0.693359375) - n * -2.12194440e-4
    p = torch.full_like(r, 1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + coefficient
    scale = ((n.to(torch.int32) + 127) << 23).view(torch.float32)
    return torch.where(x < -87.3, torch.zeros_like(x), ((p * (r * r) + r) + 1.0) * scale)


def _tree_sum(x: Tensor, dim: int) -> Tensor:
    """Sum by repeated halving, as elementwise additions. Zeros appended to `x` change no bit of the result."""
    x = x.movedim(dim, 0)
    size = len(x)
    width = 1 << max(0, size - 1).bit_length()
    while width > 1:
        width //= 2
        if size > width:
            low, high = x[:width], x[width:size]
            x = torch.cat([low[: size - width] + high, low[size - width :]]) if size < 2 * width else low + high
            size = width
    return x[0] + 0.0


def _round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., dim] -> int8 quants and float32 scales [...], for which x ~ scales * quants."""
    largest = x.abs().amax(-1)
    inverse = torch.where(largest > 0, 127.0 / largest.clamp_min(1e-30), torch.zeros_like(largest))
    return torch.round(x * inverse.unsqueeze(-1)).to(torch.int8), largest / 127.0


def _read(keys: Tensor, values: Tensor, blocks: Tensor, context: int, dim: int) -> tuple[Tensor, Tensor]:
    """Keys and values of the places 0..context in `blocks`, float32 [context, kv_heads, dim] each."""
    k, v = keys[blocks], values[blocks]
    keys_read, values_read = k[:, :, :dim].float(), v[..., :dim].float()
    if k.dtype == torch.int8:
        keys_read = keys_read * key_scales(k).unsqueeze(2)
        values_read = values_read * value_scales(v).unsqueeze(-1)
    return keys_read.permute(0, 3, 1, 2).flatten(0, 1)[:context], values_read.permute(0, 2, 1, 3).flatten(0, 1)[
        :context
    ]


def _attend(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """q [rows, kv_heads, group, dim] over keys, values [context, kv_heads, dim]; row i sees places 0..positions[i]."""
    dim = q.shape[-1]
    products = q.unsqueeze(0) * keys[:, None, :, None, :]
    scores = _tree_sum(products, -1) * dim**-0.5
    hidden = (torch.arange(len(keys), device=q.device)[:, None] > positions[None, :])[:, :, None, None]
    scores = scores.masked_fill(hidden, float("-inf"))
    weights = exp(scores - scores.amax(0))
    total = _tree_sum(weights, 0)
    products = weights.unsqueeze(-1) * values[:, None, :, None, :]
    mixed = _tree_sum(products.masked_fill(hidden.unsqueeze(-1), 0.0), 0)  # a later place may hold no number
    return mixed / total.unsqueeze(-1)


def _attend_window(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, window: int) -> Tensor:
    """As _attend, but row i sees no place before positions[i] - window + 1.

    A partial result per tile of places, added in order: a tile that a row does not see adds exactly nothing, so tiles
    which no row sees are left out and the others may be there for a neighbour's sake.
    """
    dim = q.shape[-1]
    first = max(0, int(positions.min()) - window + 1) // WINDOW_TILE * WINDOW_TILE
    partial = []
    for start in range(first, int(positions.max()) + 1, WINDOW_TILE):
        near, far = keys[start : start + WINDOW_TILE], values[start : start + WINDOW_TILE]
        places = torch.arange(start, start + len(near), device=q.device)[:, None]
        hidden = ((places > positions) | (places <= positions - window))[:, :, None, None]
        scores = _tree_sum(q.unsqueeze(0) * near[:, None, :, None, :], -1) * dim**-0.5
        scores = scores.masked_fill(hidden, float("-inf"))
        top = scores.amax(0)
        weights = exp(scores - top.masked_fill(top == float("-inf"), 0.0))
        products = weights.unsqueeze(-1) * far[:, None, :, None, :]
        mixed = _tree_sum(products.masked_fill(hidden.unsqueeze(-1), 0.0), 0)
        partial.append((top, _tree_sum(weights, 0), mixed))
    top = torch.stack([each for each, _, _ in partial]).amax(0)
    total, mixed = torch.zeros_like(top), torch.zeros_like(q)
    for each, weight, product in partial:
        factor = exp(each - top)
        total = total + factor * weight
        mixed = mixed + factor.unsqueeze(-1) * product
    return mixed / total.unsqueeze(-1)
