"""The kernels in C++, called through ctypes: thin shells that check shapes, allocate outputs and pass pointers."""

import ctypes
import os
import weakref
from collections.abc import Sequence
from ctypes import byref, c_int32
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from netgain.errors import Unavailable
from netgain.serving.model.kernels.arena import Arena
from netgain.serving.model.kernels.blocks import Q4_0_BYTES, Q4_1_BYTES, Q8_0_BYTES, check_blocks
from netgain.serving.model.kernels.build import cache_directory, find_compiler, load_library
from netgain.serving.model.kernels.compiled_stack import CompiledStack
from netgain.serving.model.kernels.native import (
    BF16,
    F16,
    F32,
    INPUTS,
    Q4_0,
    Q4_1,
    Q8_0,
    Matrix,
    PackedWeight,
    Plan,
    Rows,
    as_cache,
    declare,
    pointer,
)
from netgain.serving.model.kernels.protocol import (
    Activations,
    AttentionPlan,
    Halves,
    Reduce,
    Stack,
    Weight,
    check_activations,
)
from netgain.serving.model.quantise import q4_1

VERSION = 2  # raise whenever any output bit changes


class CompiledKernels:
    """Kernels on the CPU. Owns `threads - 1` worker threads until it is garbage collected; calls may come from any
    thread, and run one after the other. Activations must be contiguous float32 CPU tensors."""

    def __init__(self, threads: int, compiler: list[str] | None = None, cache: Path | None = None) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        library = load_library(compiler or find_compiler(), cache or cache_directory())
        self._c = declare(library)
        self.threads = threads
        self._arena = Arena()
        self.name = f"cpp-{library.ng_isa().decode()}-v{VERSION}"
        self.build = Path(library._name).stem  # holds a digest of sources, compiler and processor
        self.note: str | None = None  # nothing to say of them
        self._pool = library.ng_create(threads)
        if not self._pool:
            raise Unavailable(f"the system gives no {threads} threads to the kernels; ask for fewer")
        self._workspace = library.ng_create_workspace()
        if not self._workspace:
            library.ng_destroy(self._pool)
            raise Unavailable("the system gives the kernels no memory")
        weakref.finalize(self, _destroy, library, self._pool, self._workspace, os.getpid())

    def pack_dense(self, weight: Tensor, dtype: torch.dtype, activations: Activations = "fp32") -> PackedWeight:
        kinds = {torch.float32: F32, torch.bfloat16: BF16, torch.float16: F16}
        if dtype not in kinds:
            raise ValueError(f"dense weights are stored as float32, bfloat16 or float16, not {dtype}")
        check_activations(activations, dtype)
        rows, columns = weight.shape
        source = weight.detach().half() if dtype == torch.float16 else weight.detach().float()
        return self._pack(source.contiguous(), (rows, columns), kinds[dtype], activations)

    def pack_q4_0(self, blocks: Tensor, shape: tuple[int, int], activations: Activations = "int8") -> PackedWeight:
        return self._pack_blocks(blocks, shape, Q4_0, Q4_0_BYTES, activations)

    def pack_q4_1(self, blocks: Tensor, shape: tuple[int, int], activations: Activations = "int8") -> PackedWeight:
        return self._pack_blocks(blocks, shape, Q4_1, Q4_1_BYTES, activations)

    def pack_q8_0(self, blocks: Tensor, shape: tuple[int, int], activations: Activations = "int8") -> PackedWeight:
        return self._pack_blocks(blocks, shape, Q8_0, Q8_0_BYTES, activations)

    def _pack_blocks(
        self, blocks: Tensor, shape: tuple[int, int], kind: int, size: int, activations: Activations
    ) -> PackedWeight:
        check_activations(activations, None)
        return self._pack(check_blocks(blocks, shape, size), shape, kind, activations)

    def _pack(self, source: Tensor, shape: tuple[int, int], kind: int, activations: Activations) -> PackedWeight:
        rows, columns = shape
        data = self._arena.empty(self._c.ng_packed_bytes(rows, columns, kind))
        self._c.ng_pack(source.data_ptr(), rows, columns, kind, data.data_ptr())
        return PackedWeight((rows, columns), data, Matrix(data.data_ptr(), rows, columns, kind, INPUTS[activations]))

    def quantise_q4_1(self, groups: Tensor) -> Tensor:
        out = torch.empty(len(groups), Q4_1_BYTES, dtype=torch.uint8)
        bad = self._c.ng_quantise_q4_1(self._pool, pointer(groups), len(groups), out.data_ptr())
        return out if bad < 0 else q4_1(groups)  # which says what is wrong

    def linear(self, x: Tensor, weight: Weight, out: Tensor | None = None) -> Tensor:
        packed = cast(PackedWeight, weight)
        rows, columns = x.shape
        if columns != packed.shape[1]:
            raise ValueError(f"activations have {columns} features, the matrix {packed.shape[1]}")
        if out is None:
            out = torch.empty(rows, packed.shape[0])
        elif out.shape != (rows, packed.shape[0]):
            raise ValueError(f"the product [{rows}, {packed.shape[0]}] does not fit into {list(out.shape)}")
        self._c.ng_linear(self._pool, byref(packed.matrix), pointer(x), rows, pointer(out))
        return out

    def embed(self, tokens: Tensor, weight: Weight) -> Tensor:
        packed = cast(PackedWeight, weight)
        tokens = tokens.long().contiguous()
        out = torch.empty(len(tokens), packed.shape[1])
        bad = self._c.ng_embed(self._pool, byref(packed.matrix), tokens.data_ptr(), len(tokens), out.data_ptr())
        if bad >= 0:
            raise IndexError(f"token {int(tokens[bad])} is outside the vocabulary of {packed.shape[0]}")
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows, columns = x.shape
        out = torch.empty(rows, columns)
        self._c.ng_rms_norm(self._pool, pointer(x), pointer(weight), eps, rows, columns, out.data_ptr())
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, columns = gate_up.shape
        out = torch.empty(rows, columns // 2)
        self._c.ng_silu_mul(self._pool, pointer(gate_up), rows, columns // 2, out.data_ptr())
        return out

    def rope(self, x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
        rows, columns = x.shape
        half = cos.shape[1]
        if columns != heads * half * 2:
            raise ValueError(f"{columns} features are not {heads} heads of {2 * half}")
        out = torch.empty(rows, columns)
        self._c.ng_rope(self._pool, pointer(x), pointer(cos), pointer(sin), rows, heads, half, out.data_ptr())
        return out

    def plan(self, positions: Tensor, segment_of_row: Tensor, block_tables: Tensor, block_tokens: int) -> Plan:
        positions, segment_of_row = positions.long().contiguous(), segment_of_row.long().contiguous()
        tables = block_tables.int().contiguous()
        count = len(positions)
        tiles = torch.empty(count, 2, dtype=torch.int32)
        pointers = (t.data_ptr() for t in (positions, segment_of_row, tables, tiles))
        rows = Rows(*pointers, count, tables.shape[1], block_tokens, 0)
        last_block = c_int32(-1)
        found = self._c.ng_plan(byref(rows), tables.shape[0], tiles.data_ptr(), byref(last_block))
        if found < 0:
            row = -1 - found
            raise ValueError(
                f"row {row} stands at position {int(positions[row])} of segment {int(segment_of_row[row])}, "
                f"which its block table does not reach"
            )
        rows.tile_count = found
        return Plan(rows, last_block.value, (positions, segment_of_row, tables, tiles))

    def store_kv(
        self, keys: Tensor, values: Tensor, cache_keys: Tensor, cache_values: Tensor, plan: AttentionPlan
    ) -> None:
        placed = cast(Plan, plan)
        cache = as_cache(cache_keys, cache_values)
        placed.check(len(cache_keys), cache.tokens)
        if keys.shape != (placed.rows.rows, cache.kv_heads * cache.dim) or values.shape != keys.shape:
            raise ValueError(f"keys {list(keys.shape)} and values {list(values.shape)} do not fit plan and cache")
        self._c.ng_store_kv(self._pool, byref(placed.rows), byref(cache), pointer(keys), pointer(values))

    def store_rows(self, x: Tensor, plane: Tensor, plan: AttentionPlan) -> None:
        placed = cast(Plan, plan)
        blocks, block_tokens, width = plane.shape
        placed.check(blocks, block_tokens)
        if x.shape != (placed.rows.rows, width) or plane.dtype != torch.bfloat16 or not plane.is_contiguous():
            raise ValueError(f"rows {list(x.shape)} do not fit plan and plane {list(plane.shape)} of {plane.dtype}")
        self._c.ng_store_rows(self._pool, byref(placed.rows), pointer(x), width, plane.data_ptr())

    def attention(
        self,
        q: Tensor,
        cache_keys: Tensor,
        cache_values: Tensor,
        plan: AttentionPlan,
        heads: int,
        window: int | None = None,
    ) -> Tensor:
        placed = cast(Plan, plan)
        cache = as_cache(cache_keys, cache_values)
        placed.check(len(cache_keys), cache.tokens)
        if q.shape != (placed.rows.rows, heads * cache.dim) or heads % cache.kv_heads:
            raise ValueError(f"queries {list(q.shape)} with {heads} heads do not fit plan and cache")
        if window is not None and window < 1:
            raise ValueError(f"a window of {window} places shows a row nothing")
        out = torch.empty(q.shape)
        self._c.ng_attention(
            self._pool, byref(placed.rows), byref(cache), pointer(q), heads, window or 0, out.data_ptr()
        )
        return out

    def argmax(self, x: Tensor) -> Tensor:
        rows, columns = x.shape
        out = torch.empty(rows, dtype=torch.int64)
        self._c.ng_argmax(self._pool, pointer(x), rows, columns, out.data_ptr())
        return out

    def stack(self, blocks: Halves, reduce: Reduce | None = None, taps: Sequence[int] = ()) -> Stack:
        return CompiledStack(self._c, self._pool, self._workspace, blocks, reduce, taps)


def _destroy(library: ctypes.CDLL, pool: int, workspace: int, owner: int) -> None:
    if os.getpid() == owner:  # threads do not survive a fork: a child has none to join
        library.ng_destroy(pool)
        library.ng_destroy_workspace(workspace)
