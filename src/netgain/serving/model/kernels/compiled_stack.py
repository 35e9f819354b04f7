"""Many halves of decoder layers in one call of the compiled library: a step has dozens, and every crossing from Python costs
microseconds."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, c_float, c_int32, c_int64, c_void_p
from typing import cast

import torch
from torch import Tensor

from netgain.serving.model.kernels.native import Cache, Matrix, PackedWeight, Plan, as_cache, pointer
from netgain.serving.model.kernels.protocol import AttentionParts, AttentionPlan, Linear, MlpParts, Reduce
from netgain.serving.model.kv import KVView

_NativeReduce = CFUNCTYPE(c_int32, c_void_p, c_int64)
_STOPPED = -2


class NativeLinear(ctypes.Structure):
    """`Linear` in stack.hpp."""

    _fields_ = (("parts", POINTER(Matrix)), ("count", c_int64), ("bias", c_void_p))


class NativeAttention(ctypes.Structure):
    """`AttentionBlock` in stack.hpp."""

    _fields_ = (
        ("norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("qkv", NativeLinear),
        ("output", NativeLinear),
        ("heads", c_int64),
        ("window", c_int64),
        ("eps", c_float),
    )


class NativeMlp(ctypes.Structure):
    """`MlpBlock` in stack.hpp."""

    _fields_ = (("norm", c_void_p), ("gate_up", NativeLinear), ("down", NativeLinear), ("eps", c_float))


class NativeBlock(ctypes.Structure):
    """`Block` in stack.hpp."""

    _fields_ = (("attention", POINTER(NativeAttention)), ("mlp", POINTER(NativeMlp)))


class NativeStack(ctypes.Structure):
    """`Stack` in stack.hpp."""

    _fields_ = (("blocks", POINTER(NativeBlock)), ("count", c_int64), ("hidden", c_int64), ("reduce", _NativeReduce))


class CompiledStack:
    """A Stack. Holds `blocks`, to whose memory the native form points."""

    def __init__(
        self,
        library: ctypes.CDLL,
        pool: int,
        workspace: int,
        blocks: Sequence[AttentionParts | MlpParts],
        reduce: Reduce | None,
        taps: Sequence[int] = (),
    ) -> None:
        self._call, self._pool, self._workspace = library.ng_run_stack, pool, workspace
        self._blocks = tuple(blocks)
        self._attending = [block for block in blocks if isinstance(block, AttentionParts)]
        if not self._attending:
            raise ValueError("a stack needs a block that attends")
        self._hidden, self._half = blocks[0].norm.shape[0], self._attending[0].head_dim // 2
        self._reduce, self._failure = reduce, None
        self._parts = [_native(block, self._hidden) for block in blocks]
        hook = _NativeReduce(self._reduced) if reduce else _NativeReduce()
        count = len(self._parts)
        self._native = NativeStack((NativeBlock * count)(*self._parts), count, self._hidden, hook)
        self._address = ctypes.addressof(self._native)
        self._bound: _Bound | None = None
        self._taps = (c_int64 * len(taps))(*taps)

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
        placed = cast(Plan, plan)
        rows, hidden = x.shape
        if rows != placed.rows.rows or hidden != self._hidden or cos.shape != (rows, self._half):
            raise ValueError(f"{rows} rows of {hidden} features do not fit the plan or the stack's {self._hidden}")
        bound = self._bound
        if bound is None or bound.kv() is not kv:
            bound = self._bound = _Bound(kv, self._attending)
        placed.check(bound.blocks, bound.block_tokens)
        taps = len(self._taps) if tapped is not None else 0
        if tapped is not None and tapped.shape != (rows, taps * hidden):
            raise ValueError(f"{list(tapped.shape)} has no room for {taps} taps of {rows} rows of {hidden} features")
        count = rows if picked is None else len(picked)
        out = torch.empty(count, hidden)
        fault = self._call(
            self._pool,
            self._workspace,
            self._address,
            placed.address,
            bound.address,
            pointer(x),
            pointer(cos),
            pointer(sin),
            None if picked is None else picked.data_ptr(),
            count,
            self._taps,
            taps,
            None if tapped is None else pointer(tapped),
            out.data_ptr(),
        )
        if fault == _STOPPED:
            failure, self._failure = self._failure, None
            assert failure is not None
            raise failure
        if fault >= 0:
            assert picked is not None
            raise IndexError(f"row {int(picked[fault])} was picked out of {rows}")
        return out

    def _reduced(self, address: int, rows: int) -> int:
        """Called by the library; an error must not pass through its frames."""
        assert self._reduce is not None
        try:
            memory = (c_float * (rows * self._hidden)).from_address(address)
            self._reduce(torch.frombuffer(memory, dtype=torch.float32).view(rows, self._hidden))
        except BaseException as failure:
            self._failure = failure
            return 1
        return 0


class _Bound:
    """Where the layers' KV lies, for as long as the view that they were taken from is the same."""

    def __init__(self, kv: KVView, attending: Sequence[AttentionParts]) -> None:
        pairs = [(kv.keys(layer), kv.values(layer)) for layer in range(len(attending))]
        caches = [as_cache(keys, values) for keys, values in pairs]
        for cache, parts in zip(caches, attending, strict=True):
            if (cache.kv_heads, cache.dim) != (parts.kv_heads, parts.head_dim):
                raise ValueError(f"a cache of {cache.kv_heads} heads of {cache.dim} does not fit the block's heads")
        places = {(len(keys), cache.tokens) for (keys, _), cache in zip(pairs, caches, strict=True)}
        if len(places) > 1:
            raise ValueError(f"the caches of a stack's layers have different places: {sorted(places)}")
        ((self.blocks, self.block_tokens),) = places
        self.kv = weakref.ref(kv)  # whose memory may be given back while the stack lives on
        self._caches = (Cache * len(caches))(*caches)
        self.address = ctypes.addressof(self._caches)


def _native(block: AttentionParts | MlpParts, hidden: int) -> NativeBlock:
    if block.norm.shape[0] != hidden:
        raise ValueError(f"blocks of {block.norm.shape[0]} and {hidden} features are not of one stack")
    if isinstance(block, AttentionParts):
        return NativeBlock(ctypes.pointer(_attention(block, hidden)), None)
    return NativeBlock(None, ctypes.pointer(_mlp(block, hidden)))


def _attention(parts: AttentionParts, hidden: int) -> NativeAttention:
    width = (parts.heads + 2 * parts.kv_heads) * parts.head_dim
    if _outs(parts.qkv) != width or parts.heads % parts.kv_heads or _outs(parts.output) != hidden:
        raise ValueError(
            f"projections to {_outs(parts.qkv)} and {_outs(parts.output)} features do not fit {width} of the heads"
        )
    return NativeAttention(
        pointer(parts.norm),
        None if parts.query_norm is None else pointer(parts.query_norm),
        None if parts.key_norm is None else pointer(parts.key_norm),
        _linear(parts.qkv),
        _linear(parts.output),
        parts.heads,
        parts.window or 0,
        parts.eps,
    )


def _mlp(parts: MlpParts, hidden: int) -> NativeMlp:
    if _outs(parts.gate_up) != 2 * _ins(parts.down) or _outs(parts.down) != hidden:
        raise ValueError(f"gate and up give {_outs(parts.gate_up)} features, down takes {_ins(parts.down)}")
    return NativeMlp(pointer(parts.norm), _linear(parts.gate_up), _linear(parts.down), parts.eps)


def _linear(linear: Linear) -> NativeLinear:
    matrices = [cast(PackedWeight, weight).matrix for weight in linear.weights]
    return NativeLinear(
        (Matrix * len(matrices))(*matrices), len(matrices), None if linear.bias is None else pointer(linear.bias)
    )


def _outs(linear: Linear) -> int:
    return sum(weight.shape[0] for weight in linear.weights)


def _ins(linear: Linear) -> int:
    return linear.weights[0].shape[1]
