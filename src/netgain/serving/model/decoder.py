"""The forward pass of decoder-only transformers over paged KV: which operation follows which, driven by the facts of a
ModelConfig alone, and nothing about how they compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.kernels.composed import product
from netgain.serving.model.kernels.protocol import (
    AttentionParts,
    AttentionPlan,
    Kernels,
    Linear,
    MlpParts,
    Weight,
)
from netgain.serving.model.kv import KVView
from netgain.serving.model.quantise import q8_0
from netgain.serving.model.rotary import RotaryTable
from netgain.serving.model.weights import (
    DTYPES,
    EMBEDDING,
    HEAD,
    NORM,
    TORCH_TYPES,
    WeightSource,
    computed_type,
)


class Decoder:
    """Weights packed for one Kernels implementation. Holds no request state; one forward at a time.

    KV outside a layer's window stays allocated: a block belongs to all layers, and others may see it.
    """

    def __init__(
        self, config: ModelConfig, source: WeightSource, kernels: Kernels, dtype: str, device: torch.device
    ) -> None:
        if dtype not in DTYPES:
            raise UsageError(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
        self.config = config
        self.device = device
        self.kernels = kernels

        def vector(name: str) -> Tensor:
            return source.dense(name).to(device, torch.float32)

        def linear(*names: str, bias: bool) -> Linear:
            weights = pack(kernels, source, [f"{name}.weight" for name in names], dtype)
            return Linear(weights, torch.cat([vector(f"{name}.bias") for name in names]) if bias else None)

        blocks: list[AttentionParts | MlpParts] = []
        self._linears: list[Linear] = []
        for number, window in enumerate(config.windows):
            start = f"model.layers.{number}."
            attention = AttentionParts(
                norm=vector(f"{start}input_layernorm.weight"),
                qkv=linear(*(f"{start}self_attn.{part}_proj" for part in "qkv"), bias=config.qkv_bias),
                query_norm=vector(f"{start}self_attn.q_norm.weight") if config.qk_norm else None,
                key_norm=vector(f"{start}self_attn.k_norm.weight") if config.qk_norm else None,
                output=linear(f"{start}self_attn.o_proj", bias=config.output_bias),
                heads=config.heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                eps=config.rms_eps,
                window=window,
            )
            mlp = MlpParts(
                norm=vector(f"{start}post_attention_layernorm.weight"),
                gate_up=linear(f"{start}mlp.gate_proj", f"{start}mlp.up_proj", bias=config.mlp_bias),
                down=linear(f"{start}mlp.down_proj", bias=config.mlp_bias),
                eps=config.rms_eps,
            )
            blocks += (attention, mlp)
            self._linears += (attention.qkv, attention.output, mlp.gate_up, mlp.down)
        self._stack = kernels.stack(blocks)
        (self._embedding,) = pack(kernels, source, [EMBEDDING], dtype)
        self._head = Linear((self._embedding,) if config.tied else pack(kernels, source, [HEAD], dtype))
        self._norm = vector(NORM)
        self._rotary = RotaryTable(config.rope, config.head_dim, config.context, device)

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed matrices, as the kernels hold them."""
        shared = () if self.config.tied else self._head.weights
        return sum(w.nbytes for w in (self._embedding, *shared, *(w for part in self._linears for w in part.weights)))

    @property
    def step_weight_bytes(self) -> int:
        """The part of it that every step reads whole: of an embedding that is not the head, only a few rows are read."""
        return self.weight_bytes - (0 if self.config.tied else self._embedding.nbytes)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        plan: AttentionPlan,
        kv: KVView,
        logits_rows: Tensor,
        out: Tensor | None = None,
    ) -> Tensor:
        """tokens, positions int64 [rows]; logits_rows int64 [m] indexes them -> float32 logits [m, vocab], written to `out`
        if it is given.

        Writes the KV of every row as `plan` says (see Kernels.plan); token ids and positions must lie within the
        model's vocabulary and context.
        """
        kernels = self.kernels
        cos, sin = self._rotary.rows(positions)
        x = self._stack(kernels.embed(tokens, self._embedding), cos, sin, kv, plan, logits_rows)
        return product(kernels, kernels.rms_norm(x, self._norm, self.config.rms_eps), self._head, out)


def pack(kernels: Kernels, source: WeightSource, names: Sequence[str], dtype: str) -> tuple[Weight, ...]:
    """Matrices that share an input, as one weight (rows in the order of `names`) where they are kept in one type, else
    apart. `dtype` is one of DTYPES; see computed_type."""
    kinds = {computed_type(source, name, dtype) for name in names}
    if len(kinds) > 1:
        return tuple(weight for name in names for weight in pack(kernels, source, [name], dtype))
    (kind,) = kinds
    if kind in TORCH_TYPES:
        return (_pack_dense(kernels, source, names, TORCH_TYPES[kind]),)
    encode = kernels.quantise_q4_1 if kind == "Q4_1" else q8_0
    blocks = [source.blocks(name, kind, encode) for name in names]
    data = blocks[0].data if len(blocks) == 1 else torch.cat([part.data for part in blocks])
    shape = (sum(part.shape[0] for part in blocks), blocks[0].shape[1])
    packed = {"Q4_0": kernels.pack_q4_0, "Q4_1": kernels.pack_q4_1, "Q8_0": kernels.pack_q8_0}
    return (packed[kind](data, shape),)


def _pack_dense(kernels: Kernels, source: WeightSource, names: Sequence[str], dtype: torch.dtype) -> Weight:
    dense = [source.dense(name, dtype) for name in names]
    return kernels.pack_dense(dense[0] if len(dense) == 1 else torch.cat(dense), dtype)
