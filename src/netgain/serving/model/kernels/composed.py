"""Halves of decoder layers, operation by operation: what every Kernels implementation must equal bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from netgain.serving.model.kernels.protocol import (
    AttentionParts,
    AttentionPlan,
    Kernels,
    Linear,
    MlpParts,
    Reduce,
)
from netgain.serving.model.kv import KVView


class ComposedStack:
    """A Stack over any kernels."""

    def __init__(
        self,
        kernels: Kernels,
        blocks: Sequence[AttentionParts | MlpParts],
        reduce: Reduce | None = None,
        taps: Sequence[int] = (),
    ) -> None:
        self._kernels, self._blocks, self._reduce = kernels, tuple(blocks), reduce
        attending = [number for number, block in enumerate(blocks) if isinstance(block, AttentionParts)]
        if not attending:
            raise ValueError("a stack needs a block that attends")
        self._last, self._taps = attending[-1], tuple(taps)

    def __call__(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv: KVView,
        plan: AttentionPlan,
        picked: Tensor | None,
        tapped: Tensor | None = None,
    ) -> Tensor:
        kernels, layer = self._kernels, 0
        picked_late = None  # a tap behind the last attention sees all rows, too
        if tapped is not None and self._taps and self._taps[-1] >= self._last:
            picked, picked_late = None, picked
        for number, block in enumerate(self._blocks):
            if isinstance(block, AttentionParts):
                added = _attention(kernels, block, x, cos, sin, kv.keys(layer), kv.values(layer), plan)
                layer += 1
                # once the last one has written the KV of all rows, only those that are asked for matter
                if number == self._last and picked is not None:
                    x, added = x[picked], added[picked]
                added = product(kernels, added, block.output)
            else:
                added = feed_forward(kernels, block, x)
            if self._reduce is not None:
                self._reduce(added)
            x = added.add_(x)
            if tapped is not None and number in self._taps:
                place = self._taps.index(number) * x.shape[1]
                tapped[:, place : place + x.shape[1]] = x
        return x if picked_late is None else x[picked_late]


def _attention(
    kernels: Kernels,
    parts: AttentionParts,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    cache_keys: Tensor,
    cache_values: Tensor,
    plan: AttentionPlan,
) -> Tensor:
    """Up to the output projection, which only the rows that are asked for need."""
    qk, v = unturned(kernels, parts, x)
    q, k = turned(kernels, parts, qk, cos, sin)
    kernels.store_kv(k, v, cache_keys, cache_values, plan)
    return kernels.attention(q, cache_keys, cache_values, plan, parts.heads, parts.window)


def unturned(kernels: Kernels, parts: AttentionParts, x: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys side by side as they are before RoPE [rows, (heads + kv_heads) * head_dim], and values."""
    roles = _roles(parts)
    qkv = product(kernels, kernels.rms_norm(x, parts.norm, parts.eps), parts.qkv)
    qk, v = qkv.split_with_sizes((sum(roles), roles[1]), 1)
    qk = qk.contiguous() if parts.query_norm is None else _normalise(kernels, parts, qk, roles)
    return qk, v.contiguous()


def turned(kernels: Kernels, parts: AttentionParts, qk: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys at their positions, apart."""
    rotating = parts.heads + parts.kv_heads  # query and key heads turn together, side by side
    q, k = kernels.rope(qk, rotating, cos, sin).split_with_sizes(_roles(parts), 1)
    return q.contiguous(), k.contiguous()


def _roles(parts: AttentionParts) -> tuple[int, int]:
    return parts.heads * parts.head_dim, parts.kv_heads * parts.head_dim


def _normalise(kernels: Kernels, parts: AttentionParts, qk: Tensor, roles: tuple[int, int]) -> Tensor:
    """Every head of queries and keys [rows, heads*dim] brought to unit mean square, scaled by its kind's weights."""
    kinds = zip(qk.split_with_sizes(roles, 1), (parts.query_norm, parts.key_norm), strict=True)
    heads = [kernels.rms_norm(x.reshape(-1, parts.head_dim), weight, parts.eps).view(x.shape) for x, weight in kinds]
    return torch.cat(heads, dim=1)


def feed_forward(kernels: Kernels, parts: MlpParts, x: Tensor) -> Tensor:
    gate_up = product(kernels, kernels.rms_norm(x, parts.norm, parts.eps), parts.gate_up)
    return product(kernels, kernels.silu_mul(gate_up), parts.down)


def product(kernels: Kernels, x: Tensor, linear: Linear, out: Tensor | None = None) -> Tensor:
    """x [rows, in] -> [rows, sum of the matrices' outs], written to `out` if it is given."""
    if len(linear.weights) == 1:
        result = kernels.linear(x, linear.weights[0], out)
    else:
        result = torch.cat([kernels.linear(x, weight) for weight in linear.weights], dim=1, out=out)
    return result if linear.bias is None else result.add_(linear.bias)
