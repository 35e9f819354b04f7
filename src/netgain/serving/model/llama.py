"""The forward pass of the Llama family over paged KV: which operation follows which, and nothing about how they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.kernels.protocol import AttentionPlan, Kernels, Weight
from netgain.serving.model.kv import KVView
from netgain.serving.model.weights import EMBEDDING, HEAD, NORM, Blocks, WeightSource

DTYPES = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class Layer:
    """One block. Query, key and value share a product, as do gate and up; see `pack` for when they cannot."""

    attention_norm: Tensor
    qkv: tuple[Weight, ...]
    output: tuple[Weight, ...]
    mlp_norm: Tensor
    gate_up: tuple[Weight, ...]
    down: tuple[Weight, ...]


class LlamaModel:
    """Weights packed for one Kernels implementation. Holds no request state; one forward at a time."""

    def __init__(
        self, config: ModelConfig, source: WeightSource, kernels: Kernels, dtype: str, device: torch.device
    ) -> None:
        if dtype not in DTYPES:
            raise UsageError(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
        self.config = config
        self.device = device
        self.kernels = kernels

        def packed(*names: str) -> tuple[Weight, ...]:
            return pack(kernels, source, names, dtype)

        def vector(name: str) -> Tensor:
            return source.dense(name).to(device, torch.float32)

        self._layers = []
        for number in range(config.layers):
            start = f"model.layers.{number}."
            layer = Layer(
                attention_norm=vector(f"{start}input_layernorm.weight"),
                qkv=packed(*(f"{start}self_attn.{part}_proj.weight" for part in "qkv")),
                output=packed(f"{start}self_attn.o_proj.weight"),
                mlp_norm=vector(f"{start}post_attention_layernorm.weight"),
                gate_up=packed(f"{start}mlp.gate_proj.weight", f"{start}mlp.up_proj.weight"),
                down=packed(f"{start}mlp.down_proj.weight"),
            )
            self._layers.append(layer)
        (self._embedding,) = packed(EMBEDDING)
        self._head = (self._embedding,) if config.tied else packed(HEAD)
        self._norm = vector(NORM)
        self._cos, self._sin = (table.to(device) for table in rotary_tables(config))

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed matrices, as the kernels hold them."""
        layers = [layer.qkv + layer.output + layer.gate_up + layer.down for layer in self._layers]
        shared = (self._embedding,) if self.config.tied else (self._embedding, *self._head)
        return sum(weight.nbytes for weights in (*layers, shared) for weight in weights)

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
        cos, sin = self._cos[positions], self._sin[positions]
        x = kernels.embed(tokens, self._embedding)
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            qkv = product(kernels.rms_norm(x, layer.attention_norm, eps), layer.qkv)
            qk, v = qkv.split_with_sizes(parts, 1)  # for one row these are views without a copy
            q, k = kernels.rope(qk.contiguous(), rotating, cos, sin).split_with_sizes(roles, 1)
            keys, values = kv.keys(number), kv.values(number)
            kernels.store_kv(k.contiguous(), v.contiguous(), keys, values, plan)
            attended = kernels.attention(q.contiguous(), keys, values, plan, config.heads)
            if number == last:  # the KV of all rows is written; from here on only rows that are asked for matter
                attended, x = attended[logits_rows], x[logits_rows]
            x += product(attended, layer.output)
            gate_up = product(kernels.rms_norm(x, layer.mlp_norm, eps), layer.gate_up)
            x += product(kernels.silu_mul(gate_up), layer.down)
        return product(kernels.rms_norm(x, self._norm, eps), self._head)

    def _product(self, x: Tensor, weights: tuple[Weight, ...]) -> Tensor:
        if len(weights) == 1:
            return self.kernels.linear(x, weights[0])
        return torch.cat([self.kernels.linear(x, weight) for weight in weights], dim=1)


def pack(kernels: Kernels, source: WeightSource, names: Sequence[str], dtype: str) -> tuple[Weight, ...]:
    """Matrices that share an input, as one weight (rows in the order of `names`) where they are stored alike, else apart.

    "auto" keeps quantised blocks and bfloat16 as stored and everything else as float32; "fp32" and "bf16" dequantise.
    """
    blocks = [source.blocks(name) if dtype == "auto" else None for name in names]
    if all(isinstance(part, Blocks) for part in blocks):
        present = [part for part in blocks if part is not None]
        if len({part.kind for part in present}) == 1:
            return (_pack_blocks(kernels, present),)
    elif all(part is None for part in blocks):
        dense = [source.dense(name) for name in names]
        kinds = {_dense_type(part, dtype) for part in dense}
        if len(kinds) == 1:
            (kind,) = kinds
            return (kernels.pack_dense(torch.cat([part.to(kind) for part in dense]), kind),)
    return tuple(weight for name in names for weight in pack(kernels, source, [name], dtype))


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos and sin of every position, float32 [context, head_dim / 2]: a table, since a vectorised cosine may round a
    number differently depending on its neighbours."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    angles = torch.arange(config.context, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def _pack_blocks(kernels: Kernels, parts: Sequence[Blocks]) -> Weight:
    data = torch.cat([part.data for part in parts])
    shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
    return kernels.pack_q4_1(data, shape) if parts[0].kind == "Q4_1" else kernels.pack_q8_0(data, shape)


def _dense_type(stored: Tensor, dtype: str) -> torch.dtype:
    if dtype == "bf16" or (dtype == "auto" and stored.dtype == torch.bfloat16):
        return torch.bfloat16
    return torch.float32
