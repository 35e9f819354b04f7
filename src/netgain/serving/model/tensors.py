"""From the tensors of a file to the parts that kernels run: vectors, products, layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from netgain.serving.model.config import ModelConfig
from netgain.serving.model.kernels.protocol import Activations, AttentionParts, Kernels, Linear, MlpParts, Weight
from netgain.serving.model.quantise import q8_0
from netgain.serving.model.weights import TORCH_TYPES, WeightSource, activations_of, computed_type


@dataclass(frozen=True)
class Layer:
    """A decoder layer as the two halves that a stack takes."""

    attention: AttentionParts
    mlp: MlpParts

    @property
    def halves(self) -> tuple[AttentionParts, MlpParts]:
        return self.attention, self.mlp

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.attention.qkv, self.attention.output, self.mlp.gate_up, self.mlp.down


class Tensors:
    """Reads parts of a model from `source` for one Kernels implementation, matrices kept as `dtype` (one of DTYPES) and
    multiplied with `activations` (one of ACTIVATIONS)."""

    def __init__(
        self, source: WeightSource, kernels: Kernels, dtype: str, device: torch.device, activations: str = "auto"
    ) -> None:
        self._source, self._kernels, self._dtype, self._device = source, kernels, dtype, device
        self._activations = activations

    def vector(self, name: str) -> Tensor:
        return self._source.dense(name).to(self._device, torch.float32)

    def linear(self, *names: str, bias: bool = False) -> Linear:
        """The matrices NAME.weight, which share an input, and their biases."""
        matrices = [f"{name}.weight" for name in names]
        weights = pack(self._kernels, self._source, matrices, self._dtype, self._activations)
        return Linear(weights, torch.cat([self.vector(f"{name}.bias") for name in names]) if bias else None)

    def layer(self, config: ModelConfig, start: str, window: int | None = None) -> Layer:
        """The layer whose tensors are called `start` and Hugging Face's names, of the widths and switches of `config`."""
        attention = AttentionParts(
            norm=self.vector(f"{start}input_layernorm.weight"),
            qkv=self.linear(*(f"{start}self_attn.{part}_proj" for part in "qkv"), bias=config.qkv_bias),
            query_norm=self.vector(f"{start}self_attn.q_norm.weight") if config.qk_norm else None,
            key_norm=self.vector(f"{start}self_attn.k_norm.weight") if config.qk_norm else None,
            output=self.linear(f"{start}self_attn.o_proj", bias=config.output_bias),
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            eps=config.rms_eps,
            window=window,
        )
        mlp = MlpParts(
            norm=self.vector(f"{start}post_attention_layernorm.weight"),
            gate_up=self.linear(f"{start}mlp.gate_proj", f"{start}mlp.up_proj", bias=config.mlp_bias),
            down=self.linear(f"{start}mlp.down_proj", bias=config.mlp_bias),
            eps=config.rms_eps,
        )
        return Layer(attention, mlp)


def pack(
    kernels: Kernels, source: WeightSource, names: Sequence[str], dtype: str, activations: str = "auto"
) -> tuple[Weight, ...]:
    """Matrices that share an input, as one weight (rows in the order of `names`) where they are kept in one type, else
    apart. `dtype` is one of DTYPES, `activations` one of ACTIVATIONS; see computed_type and activations_of, which raise."""
    kinds = {computed_type(source, name, dtype) for name in names}
    if len(kinds) > 1:
        return tuple(weight for name in names for weight in pack(kernels, source, [name], dtype, activations))
    (kind,) = kinds
    rounded = activations_of(kind, activations, names[0])
    if kind in TORCH_TYPES:
        return (_pack_dense(kernels, source, names, TORCH_TYPES[kind], rounded),)
    encode = kernels.quantise_q4_1 if kind == "Q4_1" else q8_0
    blocks = [source.blocks(name, kind, encode) for name in names]
    data = blocks[0].data if len(blocks) == 1 else torch.cat([part.data for part in blocks])
    shape = (sum(part.shape[0] for part in blocks), blocks[0].shape[1])
    packed = {"Q4_0": kernels.pack_q4_0, "Q4_1": kernels.pack_q4_1, "Q8_0": kernels.pack_q8_0}
    return (packed[kind](data, shape, rounded),)


def _pack_dense(
    kernels: Kernels, source: WeightSource, names: Sequence[str], dtype: torch.dtype, activations: Activations
) -> Weight:
    dense = [source.dense(name, dtype) for name in names]
    return kernels.pack_dense(dense[0] if len(dense) == 1 else torch.cat(dense), dtype, activations)
