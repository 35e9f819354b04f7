"""The C side as Python sees it: structures that mirror the library's, what points into its memory, and its functions."""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from netgain.serving.model.kv import SCALE_BYTES

F32, BF16, Q4_1, Q8_0, F16, Q4_0 = range(6)  # `Kind` in linear.hpp
INPUTS: Mapping[str, int] = MappingProxyType({"fp32": 0, "bf16": 1, "int8": 2})  # `Input` there
_STORED = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}  # `Stored` in cache.hpp


class Matrix(ctypes.Structure):
    """`Matrix` in linear.hpp."""

    _fields_ = (("data", c_void_p), ("outs", c_int64), ("ins", c_int64), ("kind", c_int32), ("input", c_int32))


class Rows(ctypes.Structure):
    """`Rows` in cache.hpp."""

    _fields_ = (
        ("positions", c_void_p),
        ("segments", c_void_p),
        ("tables", c_void_p),
        ("tiles", c_void_p),
        ("rows", c_int64),
        ("table_blocks", c_int64),
        ("block_tokens", c_int64),
        ("tile_count", c_int64),
    )


class Cache(ctypes.Structure):
    """`Cache` in cache.hpp."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("tokens", c_int64),
        ("stored", c_int32),
    )


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A matrix as the library laid it out (`data`, uint8) and the structure that points to it."""

    shape: tuple[int, int]
    data: Tensor
    matrix: Matrix

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


@dataclass(frozen=True, eq=False)
class Plan:
    """Keeps the tensors alive that `rows` points to. `last_block` is the highest cache block any row reads."""

    rows: Rows
    last_block: int
    tensors: tuple[Tensor, ...]

    @property
    def address(self) -> int:
        return ctypes.addressof(self.rows)

    def check(self, blocks: int, block_tokens: int) -> None:
        """Raises ValueError unless the plan stays inside a cache of `blocks` of `block_tokens` places."""
        if block_tokens != self.rows.block_tokens or self.last_block >= blocks:
            raise ValueError(
                f"the plan (blocks of {self.rows.block_tokens} up to {self.last_block}) does not fit the cache of "
                f"{blocks} blocks of {block_tokens}"
            )


def pointer(tensor: Tensor) -> int:
    if tensor.dtype != torch.float32 or not tensor.is_contiguous():
        raise ValueError(f"the kernels take contiguous float32, not {tensor.dtype} with strides {tensor.stride()}")
    return tensor.data_ptr()


def as_cache(keys: Tensor, values: Tensor) -> Cache:
    """Of two tensors as model/kv.py shapes them, which must outlive it."""
    stored = _STORED.get(keys.dtype)
    if stored is None or values.dtype != keys.dtype:
        raise ValueError(f"the cache must be bfloat16, float32 or int8, not {keys.dtype} and {values.dtype}")
    blocks, kv_heads, size, tokens = keys.shape
    if values.shape != (blocks, kv_heads, tokens, size):
        raise ValueError(f"keys {list(keys.shape)} and values {list(values.shape)} are no blocks of one cache")
    if not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError("the cache must be contiguous")
    dim = size - (SCALE_BYTES if keys.dtype == torch.int8 else 0)
    return Cache(keys.data_ptr(), values.data_ptr(), kv_heads, dim, tokens, stored)


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    matrix, rows, cache = POINTER(Matrix), POINTER(Rows), POINTER(Cache)
    p, n = c_void_p, c_int64
    signatures: dict[str, tuple[type | None, list[type]]] = {
        "ng_isa": (c_char_p, []),
        "ng_create": (p, [c_int]),
        "ng_destroy": (None, [p]),
        "ng_packed_bytes": (n, [n, n, c_int32]),
        "ng_pack": (None, [p, n, n, c_int32, p]),
        "ng_quantise_q4_1": (n, [p, p, n, p]),
        "ng_linear": (None, [p, matrix, p, n, p]),
        "ng_embed": (n, [p, matrix, p, n, p]),
        "ng_rms_norm": (None, [p, p, p, c_float, n, n, p]),
        "ng_silu_mul": (None, [p, p, n, n, p]),
        "ng_rope": (None, [p, p, p, p, n, n, n, p]),
        "ng_plan": (n, [rows, n, p, POINTER(c_int32)]),
        "ng_store_kv": (None, [p, rows, cache, p, p]),
        "ng_store_rows": (None, [p, rows, p, n, p]),
        "ng_attention": (None, [p, rows, cache, p, n, n, p]),
        "ng_create_workspace": (p, []),
        "ng_destroy_workspace": (None, [p]),
        "ng_run_stack": (n, [p, p, p, p, p, p, p, p, p, n, p, n, p, p]),
        "ng_argmax": (None, [p, p, n, n, p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
