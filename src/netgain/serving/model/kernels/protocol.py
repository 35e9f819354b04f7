"""What a model needs from a device: the few operations whose bits must not depend on what shares the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from netgain.serving.model.kv import KVView

Activations = Literal["fp32", "bf16", "int8"]
"""What activations are rounded to before they are multiplied. fp32: not at all; bf16: each number, with bfloat16 matrices; int8:
per group of 32, with quantised blocks."""


def check_activations(activations: Activations, dtype: torch.dtype | None) -> None:
    """Raises ValueError where matrices of `dtype` (None: blocks) are not multiplied with these."""
    other = "int8" if dtype is None else "bf16" if dtype == torch.bfloat16 else "fp32"
    if activations not in ("fp32", other):
        raise ValueError(f"{'blocks' if dtype is None else dtype} are not multiplied with {activations} activations")


class Weight(Protocol):
    """A matrix [out_features, in_features] packed for one Kernels implementation; made by its `pack_*` methods."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...


class AttentionPlan(Protocol):
    """Where the rows of a batch stand, prepared once per step and used by every layer (see Kernels.plan)."""


@dataclass(frozen=True)
class Linear:
    """A product and the vector added to it, if any. Several matrices share the input; their outputs lie side by side."""

    weights: tuple[Weight, ...]
    bias: Tensor | None = None


@dataclass(frozen=True)
class AttentionParts:
    """The first half of a decoder layer. `query_norm` and `key_norm` [head_dim] are there if heads are normalised; a row
    sees its last `window` positions (None: all before it)."""

    norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    window: int | None = None


@dataclass(frozen=True)
class MlpParts:
    """The second half: norm, gate and up in one product, SiLU, down."""

    norm: Tensor
    gate_up: Linear
    down: Linear
    eps: float


Halves = Sequence[AttentionParts | MlpParts]
"""Of decoder layers, in the order in which they are run."""

Reduce = Callable[[Tensor], None]
"""Sees what a block is about to add to its input, float32 [rows, hidden], and may change it in place: a rank that holds
a shard of the block's matrices sums over the ranks here. What it raises ends the run. It must not keep the tensor."""


class Stack(Protocol):
    """Blocks one after the other, each added to its own input; made by Kernels.stack."""

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
        """x [rows, hidden] -> rows `picked` of the result (int64 [count], None: all). cos, sin float32 [rows, head_dim / 2].

        The KV of all rows is written: `kv` has a layer for each block that attends, in order. What stands behind each of the
        stack's taps is written side by side to `tapped` [rows, taps * hidden], if that is given.
        """
        ...


class Kernels(Protocol):
    """Batch-invariant operations: every output row has the same bits whatever rows stand beside it, however the prompt
    was chunked, with any thread count. Activations are contiguous float32 [rows, features]."""

    name: str  # part of the numerics id: kernel path, instruction set and version
    build: str  # what of them runs: times belong to it, where output bits belong to `name`

    def pack_dense(self, weight: Tensor, dtype: torch.dtype, activations: Activations = "fp32") -> Weight:
        """From float [out, in]; stored as `dtype` (float32, bfloat16 or float16), products accumulated in float32.

        With bf16 activations those sums have one set of bits in every implementation, that of the instruction VDPBF16PS: pairs
        of inputs in order, of each the odd one first, products exact, each addition rounded once, denormals as zero.
        """
        ...

    def pack_q4_0(self, blocks: Tensor, shape: tuple[int, int], activations: Activations = "int8") -> Weight:
        """From raw GGUF Q4_0 rows (uint8 [out, in/32*18])."""
        ...

    def pack_q4_1(self, blocks: Tensor, shape: tuple[int, int], activations: Activations = "int8") -> Weight:
        """From raw GGUF Q4_1 rows (uint8 [out, in/32*20])."""
        ...

    def pack_q8_0(self, blocks: Tensor, shape: tuple[int, int], activations: Activations = "int8") -> Weight:
        """From raw GGUF Q8_0 rows (uint8 [out, in/32*34])."""
        ...

    def quantise_q4_1(self, groups: Tensor) -> Tensor:
        """Float32 [n, 32] on the CPU -> Q4_1 blocks uint8 [n, 20], the bytes of quantise.q4_1. Raises UsageError as it does."""
        ...

    def linear(self, x: Tensor, weight: Weight, out: Tensor | None = None) -> Tensor:
        """x [rows, in] -> [rows, out], written to `out` if it is given."""
        ...

    def embed(self, tokens: Tensor, weight: Weight) -> Tensor:
        """tokens int64 [rows] -> dequantised float32 rows [rows, in] of `weight`."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[rows, 2*ffn] (gate first) -> silu(gate) * up [rows, ffn]."""
        ...

    def rope(self, x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate halves (Hugging Face layout) of x [rows, heads*dim]; cos, sin float32 [rows, dim/2]."""
        ...

    def plan(self, positions: Tensor, segment_of_row: Tensor, block_tables: Tensor, block_tokens: int) -> AttentionPlan:
        """positions int64 [rows], segment_of_row int64 [rows], block_tables int32 [segments, blocks] (padded with -1)."""
        ...

    def store_kv(
        self, keys: Tensor, values: Tensor, cache_keys: Tensor, cache_values: Tensor, plan: AttentionPlan
    ) -> None:
        """Write keys/values [rows, kv_heads*dim] into the paged cache, whose shapes and types are those of model/kv.py."""
        ...

    def store_rows(self, x: Tensor, plane: Tensor, plan: AttentionPlan) -> None:
        """Write x [rows, width] to where the rows stand in `plane`, bfloat16 [blocks, block_tokens, width]."""
        ...

    def attention(
        self,
        q: Tensor,
        cache_keys: Tensor,
        cache_values: Tensor,
        plan: AttentionPlan,
        heads: int,
        window: int | None = None,
    ) -> Tensor:
        """Causal attention of each row over positions 0..its own, reading K and V as stored, also the current chunk's.

        q [rows, heads*dim] -> [rows, heads*dim], scaled by 1/sqrt(dim), grouped heads (heads % kv_heads == 0). With a
        `window` a row sees only its last `window` positions, its own among them; tiles before it are not read.
        """
        ...

    def argmax(self, x: Tensor) -> Tensor:
        """x [rows, n] -> int64 [rows]: where the highest value stands first; -1 if that is no finite number, or any is NaN."""
        ...

    def stack(self, blocks: Halves, reduce: Reduce | None = None, taps: Sequence[int] = ()) -> Stack:
        """The operations above as halves of layers, with the bits that composed.py has. At least one block attends; all
        have one hidden size, one head size and caches of one shape. `taps`: places of blocks, ascending."""
        ...
