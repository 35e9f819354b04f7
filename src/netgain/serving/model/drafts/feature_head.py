"""A head of one decoder layer that says the next tokens from what the target thought about the last one.

After EAGLE (arXiv:2401.15077) with the inputs of EAGLE-3 (arXiv:2503.01840): the outputs of some of the target's layers,
fused to one vector per position. At position p it reads token p and the feature of p - 1, and says token p + 1; drafting on,
its own output stands in for the features that the target has not computed.

Tensors of the file, H being the target's hidden size: `fuse.weight` [H, taps x H]; `token_norm.weight` and
`feature_norm.weight` [H]; `input.weight` [H, 2H], token first; `layer.` and the Hugging Face names of a layer of the target's
shape; `norm.weight` [H]; `head.weight` [rows, H] and `ids` int64 [rows], ascending: the tokens that it can say.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.kernels.composed import product
from netgain.serving.model.kernels.protocol import AttentionPlan, Kernels
from netgain.serving.model.kv import KVView
from netgain.serving.model.rotary import RotaryTable
from netgain.serving.model.tensors import Tensors
from netgain.serving.model.weights import WeightSource


def one_layer(config: ModelConfig) -> ModelConfig:
    """The shape of the head's own layer and KV."""
    return replace(config, layers=1, windows=(None,))


class FeatureHead:
    """Weights packed for one Kernels implementation. `config` is the target's. Holds no request state."""

    reads_text = True  # it has KV of its own, so it must have read what it drafts from

    def __init__(
        self, config: ModelConfig, source: WeightSource, kernels: Kernels, device: torch.device, dtype: str = "bf16"
    ) -> None:
        """`dtype` of DTYPES is how the matrices are kept."""
        tensors = Tensors(source, kernels, dtype, device)
        self._kernels, self._eps = kernels, config.rms_eps
        self._fuse = tensors.linear("fuse")
        self._token_norm, self._feature_norm = (
            tensors.vector("token_norm.weight"),
            tensors.vector("feature_norm.weight"),
        )
        self._input = tensors.linear("input")
        layer = tensors.layer(one_layer(config), "layer.")
        self._stack = kernels.stack(layer.halves)
        self._norm = tensors.vector("norm.weight")
        self._head = tensors.linear("head")
        self.ids = said_ids(source, config.vocab).to(device)
        self._rotary = RotaryTable(config.rope, config.head_dim, config.context, device)
        self.weight_bytes = sum(
            weight.nbytes
            for linear in (self._fuse, self._input, self._head, *layer.linears)
            for weight in linear.weights
        )

    @torch.inference_mode()
    def fuse(self, tapped: Tensor) -> Tensor:
        """What the target's layers gave, float32 [rows, taps x H] -> features [rows, H]."""
        return product(self._kernels, tapped, self._fuse)

    @torch.inference_mode()
    def forward(
        self,
        embedded: Tensor,
        features: Tensor,
        positions: Tensor,
        plan: AttentionPlan,
        kv: KVView,
        wanted: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """embedded tokens and the features before them, float32 [rows, H] -> logits over `ids` [wanted, len(ids)] and the
        features that it expects there, [wanted, H] (None: of all rows). Writes the KV of all rows."""
        kernels = self._kernels
        both = (
            kernels.rms_norm(embedded, self._token_norm, self._eps),
            kernels.rms_norm(features, self._feature_norm, self._eps),
        )
        x = product(kernels, torch.cat(both, dim=1), self._input)
        cos, sin = self._rotary.rows(positions)
        expected = self._stack(x, cos, sin, kv, plan, wanted)
        return product(kernels, kernels.rms_norm(expected, self._norm, self._eps), self._head), expected


def said_ids(source: WeightSource, vocab: int) -> Tensor:
    """The tokens that a head can say, int64 ascending. Raises UsageError where they are none of the target's."""
    ids = source.dense("ids").to(torch.int64)
    if (
        ids.ndim != 1
        or not len(ids)
        or bool((ids[1:] <= ids[:-1]).any())
        or not 0 <= int(ids[0]) <= int(ids[-1]) < vocab
    ):
        raise UsageError(f"the draft's ids are not ascending tokens of a vocabulary of {vocab}; train it again")
    return ids
