"""The forward pass of decoder-only transformers over paged KV: which operation follows which, driven by the facts of a
ModelConfig alone, and nothing about how they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.kernels.protocol import AttentionPlan, Kernels, Weight
from netgain.serving.model.kv import KVView
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


@dataclass(frozen=True)
class Linear:
    """A product and the vector added to it, if any. Several matrices that share an input are one: see `pack`."""

    weights: tuple[Weight, ...]
    bias: Tensor | None = None


@dataclass(frozen=True)
class Layer:
    """One block. `query_norm` and `key_norm` [head_dim] are there if the model normalises its heads."""

    attention_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    window: int | None


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

        self._layers = []
        for number, window in enumerate(config.windows):
            start = f"model.layers.{number}."
            layer = Layer(
                attention_norm=vector(f"{start}input_layernorm.weight"),
                qkv=linear(*(f"{start}self_attn.{part}_proj" for part in "qkv"), bias=config.qkv_bias),
                query_norm=vector(f"{start}self_attn.q_norm.weight") if config.qk_norm else None,
                key_norm=vector(f"{start}self_attn.k_norm.weight") if config.qk_norm else None,
                output=linear(f"{start}self_attn.o_proj", bias=config.output_bias),
                mlp_norm=vector(f"{start}post_attention_layernorm.weight"),
                gate_up=linear(f"{start}mlp.gate_proj", f"{start}mlp.up_proj", bias=config.mlp_bias),
                down=linear(f"{start}mlp.down_proj", bias=config.mlp_bias),
                window=window,
            )
            self._layers.append(layer)
        (self._embedding,) = pack(kernels, source, [EMBEDDING], dtype)
        self._head = Linear((self._embedding,) if config.tied else pack(kernels, source, [HEAD], dtype))
        self._norm = vector(NORM)
        self._rotary = RotaryTable(config.rope, config.head_dim, config.context, device)

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed matrices, as the kernels hold them."""
        linears = [part for layer in self._layers for part in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        shared = () if self.config.tied else self._head.weights
        return sum(w.nbytes for w in (self._embedding, *shared, *(w for part in linears for w in part.weights)))

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, positions: Tensor, plan: AttentionPlan, kv: KVView, logits_rows: Tensor
    ) -> Tensor:
        """tokens, positions int64 [rows]; logits_rows int64 [m] indexes them -> float32 logits [m, vocab].

        Writes the KV of every row as `plan` says (see Kernels.plan); token ids and positions must lie within the
        model's vocabulary and context.
        """
        kernels, config = self.kernels, self.config
        width = config.kv_heads * config.head_dim
        rotating = config.heads + config.kv_heads  # query and key heads turn together, side by side
        parts, roles = (rotating * config.head_dim, width), (config.heads * config.head_dim, width)
        eps, product = config.rms_eps, self._product
        cos, sin = self._rotary.rows(positions)
        x = kernels.embed(tokens, self._embedding)
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            qkv = product(kernels.rms_norm(x, layer.attention_norm, eps), layer.qkv)
            qk, v = qkv.split_with_sizes(parts, 1)  # for one row these are views without a copy
            qk = qk.contiguous() if layer.query_norm is None else self._normalise(qk, roles, layer)
            q, k = kernels.rope(qk, rotating, cos, sin).split_with_sizes(roles, 1)
            keys, values = kv.keys(number), kv.values(number)
            kernels.store_kv(k.contiguous(), v.contiguous(), keys, values, plan)
            attended = kernels.attention(q.contiguous(), keys, values, plan, config.heads, layer.window)
            if number == last:  # the KV of all rows is written; from here on only rows that are asked for matter
                attended, x = attended[logits_rows], x[logits_rows]
            x += product(attended, layer.output)
            gate_up = product(kernels.rms_norm(x, layer.mlp_norm, eps), layer.gate_up)
            x += product(kernels.silu_mul(gate_up), layer.down)
        return product(kernels.rms_norm(x, self._norm, eps), self._head)

    def _product(self, x: Tensor, linear: Linear) -> Tensor:
        kernels, weights = self.kernels, linear.weights
        out = kernels.linear(x, weights[0])
        if len(weights) > 1:
            out = torch.cat([out, *(kernels.linear(x, weight) for weight in weights[1:])], dim=1)
        return out if linear.bias is None else out.add_(linear.bias)

    def _normalise(self, qk: Tensor, roles: tuple[int, int], layer: Layer) -> Tensor:
        """Every head of queries and keys [rows, heads*dim] brought to unit mean square, scaled by its kind's weights."""
        dim, eps = self.config.head_dim, self.config.rms_eps
        parts = zip(qk.split_with_sizes(roles, 1), (layer.query_norm, layer.key_norm), strict=True)
        heads = [self.kernels.rms_norm(x.reshape(-1, dim), weight, eps).view(x.shape) for x, weight in parts]
        return torch.cat(heads, dim=1)


def pack(kernels: Kernels, source: WeightSource, names: Sequence[str], dtype: str) -> tuple[Weight, ...]:
    """Matrices that share an input, as one weight (rows in the order of `names`) where they are kept in one type, else
    apart. `dtype` is one of DTYPES; see computed_type."""
    kinds = {computed_type(source.kind(name), dtype) for name in names}
    if len(kinds) > 1:
        return tuple(weight for name in names for weight in pack(kernels, source, [name], dtype))
    (kind,) = kinds
    if kind in TORCH_TYPES:
        return (_pack_dense(kernels, source, names, TORCH_TYPES[kind]),)
    blocks = [source.blocks(name) for name in names]
    data, shape = torch.cat([part.data for part in blocks]), (sum(part.shape[0] for part in blocks), blocks[0].shape[1])
    return (kernels.pack_q4_1(data, shape) if kind == "Q4_1" else kernels.pack_q8_0(data, shape),)


def _pack_dense(kernels: Kernels, source: WeightSource, names: Sequence[str], dtype: torch.dtype) -> Weight:
    dense = [source.dense(name, dtype) for name in names]
    return kernels.pack_dense(dense[0] if len(dense) == 1 else torch.cat(dense), dtype)
