"""Halves of a decoder layer in one call of the compiled library each: a step has dozens of layers, and every crossing from
Python costs microseconds."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int64, c_void_p
from typing import cast

import torch
from torch import Tensor

from netgain.serving.model.kernels.native import Cache, Matrix, PackedWeight, Plan, as_cache, pointer
from netgain.serving.model.kernels.protocol import AttentionParts, AttentionPlan, Linear, MlpParts


class NativeLinear(ctypes.Structure):
    """`Linear` in block.hpp."""

    _fields_ = (("parts", POINTER(Matrix)), ("count", c_int64), ("bias", c_void_p))


class NativeAttention(ctypes.Structure):
    """`AttentionBlock` in block.hpp."""

    _fields_ = (
        ("norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("qkv", NativeLinear),
        ("output", NativeLinear),
        ("hidden", c_int64),
        ("heads", c_int64),
        ("window", c_int64),
        ("eps", c_float),
    )


class NativeMlp(ctypes.Structure):
    """`MlpBlock` in block.hpp."""

    _fields_ = (
        ("norm", c_void_p),
        ("gate_up", NativeLinear),
        ("down", NativeLinear),
        ("hidden", c_int64),
        ("eps", c_float),
    )


class CompiledAttention:
    """An AttentionBlock. Holds `parts`, to whose memory the native form points."""

    def __init__(self, library: ctypes.CDLL, pool: int, parts: AttentionParts) -> None:
        self._call, self._pool, self._parts = library.ng_attention_block, pool, parts
        self._hidden, self._outs = parts.norm.shape[0], _outs(parts.output)
        width = (parts.heads + 2 * parts.kv_heads) * parts.head_dim
        if _outs(parts.qkv) != width or parts.heads % parts.kv_heads or self._outs != self._hidden:
            raise ValueError(
                f"projections to {_outs(parts.qkv)} and {self._outs} features do not fit {width} of the heads"
            )
        norms = [None if norm is None else pointer(norm) for norm in (parts.query_norm, parts.key_norm)]
        self._native = NativeAttention(
            pointer(parts.norm),
            *norms,
            _linear(parts.qkv),
            _linear(parts.output),
            self._hidden,
            parts.heads,
            parts.window or 0,
            parts.eps,
        )
        self._address = ctypes.addressof(self._native)
        self._seen: tuple[Tensor, Tensor, Cache] | None = (
            None  # the cache tensors of the last call: a layer's never change
        )

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
        placed = cast(Plan, plan)
        rows, hidden = x.shape
        if rows != placed.rows.rows or hidden != self._hidden or cos.shape[0] != rows:
            raise ValueError(f"{rows} rows of {hidden} features do not fit the plan or the block's {self._hidden}")
        cache = self._cache(cache_keys, cache_values)
        placed.check(cache_keys)
        count = rows
        if picked is not None:
            count = len(picked)
            lowest, highest = picked.aminmax() if count else (0, 0)
            if not 0 <= int(lowest) <= int(highest) < rows:
                raise IndexError(f"row {int(highest)} was picked out of {rows}")
        out = torch.empty(count, self._outs)
        self._call(
            self._pool,
            self._address,
            placed.address,
            ctypes.addressof(cache),
            pointer(x),
            pointer(cos),
            pointer(sin),
            None if picked is None else picked.data_ptr(),
            count,
            out.data_ptr(),
        )
        return out

    def _cache(self, keys: Tensor, values: Tensor) -> Cache:
        if self._seen is None or self._seen[0] is not keys or self._seen[1] is not values:
            cache = as_cache(keys, values)
            if (cache.kv_heads, cache.dim) != (self._parts.kv_heads, self._parts.head_dim):
                raise ValueError(f"a cache of {cache.kv_heads} heads of {cache.dim} does not fit the block's heads")
            self._seen = keys, values, cache
        return self._seen[2]


class CompiledMlp:
    """An MlpBlock. Holds `parts`, to whose memory the native form points."""

    def __init__(self, library: ctypes.CDLL, pool: int, parts: MlpParts) -> None:
        self._call, self._pool, self._parts = library.ng_mlp_block, pool, parts
        self._hidden = parts.norm.shape[0]
        if _outs(parts.gate_up) != 2 * _ins(parts.down) or _outs(parts.down) != self._hidden:
            raise ValueError(f"gate and up give {_outs(parts.gate_up)} features, down takes {_ins(parts.down)}")
        self._native = NativeMlp(
            pointer(parts.norm), _linear(parts.gate_up), _linear(parts.down), self._hidden, parts.eps
        )
        self._address = ctypes.addressof(self._native)

    def __call__(self, x: Tensor) -> Tensor:
        rows, hidden = x.shape
        if hidden != self._hidden:
            raise ValueError(f"activations have {hidden} features, the block {self._hidden}")
        out = torch.empty(rows, hidden)
        self._call(self._pool, self._address, pointer(x), rows, out.data_ptr())
        return out


def _linear(linear: Linear) -> NativeLinear:
    matrices = [cast(PackedWeight, weight).matrix for weight in linear.weights]
    return NativeLinear(
        (Matrix * len(matrices))(*matrices), len(matrices), None if linear.bias is None else pointer(linear.bias)
    )


def _outs(linear: Linear) -> int:
    return sum(weight.shape[0] for weight in linear.weights)


def _ins(linear: Linear) -> int:
    return linear.weights[0].shape[1]
