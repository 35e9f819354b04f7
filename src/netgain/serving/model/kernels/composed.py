"""The two halves of a decoder layer, operation by operation: what every Kernels implementation must equal bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from netgain.serving.model.kernels.protocol import AttentionParts, AttentionPlan, Kernels, Linear, MlpParts


@dataclass(frozen=True)
class ComposedAttention:
    """An AttentionBlock over any kernels."""

    kernels: Kernels
    parts: AttentionParts

    def __call__(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache_keys: Tensor,
        cache_values: Tensor,
        plan: AttentionPlan,
        picked: Tensor | None,
    ) -> Tensor:
        kernels, parts = self.kernels, self.parts
        width = parts.kv_heads * parts.head_dim
        rotating = parts.heads + parts.kv_heads  # query and key heads turn together, side by side
        roles = (parts.heads * parts.head_dim, width)
        qkv = product(kernels, kernels.rms_norm(x, parts.norm, parts.eps), parts.qkv)
        qk, v = qkv.split_with_sizes((rotating * parts.head_dim, width), 1)
        qk = qk.contiguous() if parts.query_norm is None else self._normalise(qk, roles)
        q, k = kernels.rope(qk, rotating, cos, sin).split_with_sizes(roles, 1)
        kernels.store_kv(k.contiguous(), v.contiguous(), cache_keys, cache_values, plan)
        attended = kernels.attention(q.contiguous(), cache_keys, cache_values, plan, parts.heads, parts.window)
        return product(kernels, attended if picked is None else attended[picked], parts.output)

    def _normalise(self, qk: Tensor, roles: tuple[int, int]) -> Tensor:
        """Every head of queries and keys [rows, heads*dim] brought to unit mean square, scaled by its kind's weights."""
        dim, eps = self.parts.head_dim, self.parts.eps
        kinds = zip(qk.split_with_sizes(roles, 1), (self.parts.query_norm, self.parts.key_norm), strict=True)
        heads = [self.kernels.rms_norm(x.reshape(-1, dim), weight, eps).view(x.shape) for x, weight in kinds]
        return torch.cat(heads, dim=1)


def composed_mlp(kernels: Kernels, parts: MlpParts) -> Callable[[Tensor], Tensor]:
    """An MlpBlock over any kernels."""

    def block(x: Tensor) -> Tensor:
        gate_up = product(kernels, kernels.rms_norm(x, parts.norm, parts.eps), parts.gate_up)
        return product(kernels, kernels.silu_mul(gate_up), parts.down)

    return block


def product(kernels: Kernels, x: Tensor, linear: Linear) -> Tensor:
    """x [rows, in] -> [rows, sum of the matrices' outs]."""
    out = kernels.linear(x, linear.weights[0])
    if len(linear.weights) > 1:
        out = torch.cat([out, *(kernels.linear(x, weight) for weight in linear.weights[1:])], dim=1)
    return out if linear.bias is None else out.add_(linear.bias)
