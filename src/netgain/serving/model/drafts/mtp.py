"""The module that some checkpoints carry to foresee one token more (multi-token prediction), as MiMo's have it.

After DeepSeek-V3 (arXiv:2412.19437): from the target's normed output at one position and the token that followed it, one
decoder layer says the token after that, through the target's own head. Drafting on, the module's normed output stands in for
the target's.

Tensors, below `model.mtp_layers.N.`: `token_layernorm` and `hidden_layernorm` before, `input_proj` [H, 2H] over both, hidden
state first; a decoder layer under Hugging Face's names; `final_layernorm`. Of several modules the first makes every draft.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.decoder import Decoder
from netgain.serving.model.drafts.feature_head import one_layer
from netgain.serving.model.kernels.composed import product
from netgain.serving.model.kernels.protocol import AttentionPlan, Kernels
from netgain.serving.model.kv import KVView
from netgain.serving.model.rotary import RotaryTable
from netgain.serving.model.tensors import Tensors
from netgain.serving.model.weights import MTP, TORCH_TYPES, WeightSource, expected_shapes, some

FIRST = f"{MTP}0."
LAST_LAYER = (-1,)  # the tap that it needs
_LAYER = "model.layers.0."


class MtpModule:
    """Weights packed for one Kernels implementation, a FeatureHead to its executor. Holds no request state."""

    def __init__(self, target: Decoder, source: WeightSource, kernels: Kernels, dtype: str) -> None:
        """Raises UsageError for tensors that are missing, of another shape, or not understood."""
        config, device = target.config, target.device
        check_module(source, config)
        tensors = Tensors(source, kernels, dtype, device)
        self._target, self._kernels, self._eps = target, kernels, config.rms_eps
        self._token_norm, self._hidden_norm, self._norm = (
            tensors.vector(f"{FIRST}{name}_layernorm.weight") for name in ("token", "hidden", "final")
        )
        self._input = tensors.linear(f"{FIRST}input_proj")
        layer = tensors.layer(one_layer(config), FIRST)
        self._stack = kernels.stack(layer.halves)
        self._rotary = RotaryTable(config.rope, config.head_dim, config.context, device)
        self.ids = torch.arange(config.vocab, device=device)
        self.weight_bytes = sum(weight.nbytes for linear in (self._input, *layer.linears) for weight in linear.weights)

    def fuse(self, tapped: Tensor) -> Tensor:
        """What the last layer gave, float32 [rows, H] -> features [rows, H]."""
        return self._target.normed(tapped)

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
        """embedded tokens and the features before them, float32 [rows, H] -> logits [wanted, vocab] and what stands in for the
        features there, [wanted, H] (None: of all rows). Writes the KV of all rows."""
        kernels = self._kernels
        both = (
            kernels.rms_norm(features, self._hidden_norm, self._eps),
            kernels.rms_norm(embedded, self._token_norm, self._eps),
        )
        x = product(kernels, torch.cat(both, dim=1), self._input)
        cos, sin = self._rotary.rows(positions)
        normed = kernels.rms_norm(self._stack(x, cos, sin, kv, plan, wanted), self._norm, self._eps)
        return self._target.logits(normed), normed


def module_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of one module, by their names below `model.mtp_layers.N.`."""
    hidden = config.hidden
    layer = expected_shapes(replace(one_layer(config), mtp=0))
    return {
        "token_layernorm.weight": (hidden,),
        "hidden_layernorm.weight": (hidden,),
        "input_proj.weight": (hidden, 2 * hidden),
        "final_layernorm.weight": (hidden,),
        **{name.removeprefix(_LAYER): shape for name, shape in layer.items() if name.startswith(_LAYER)},
    }


def check_module(source: WeightSource, config: ModelConfig) -> None:
    """Raises UsageError unless the checkpoint's first module is whole."""
    where, present = source.files[0].parent, source.names()
    if not config.mtp:
        raise UsageError(
            f"{where} carries no MTP module (num_nextn_predict_layers), so speculation method mtp has nothing to draft with; "
            "netgain draft train makes a draft"
        )
    expected = {f"{FIRST}{name}": shape for name, shape in module_shapes(config).items()}
    missing = [name for name in expected if name not in present]
    if missing:
        raise UsageError(f"{where}: tensor {some(missing)} missing; the checkpoint's MTP module is incomplete")
    for name, shape in expected.items():
        if source.shape(name) != shape:
            raise UsageError(f"{where}: {name} is {source.shape(name)}, the configuration says {shape}")
        if source.kind(name) not in TORCH_TYPES:
            raise UsageError(
                f"{where}: tensor {name} has type {source.kind(name)}; supported: {', '.join(TORCH_TYPES)}"
            )
    left = sorted(name for name in present if name.startswith(FIRST) and name not in expected)
    if left:
        raise UsageError(
            f"{where}: tensor {some(left)} not part of an MTP module as model type {config.architecture} has it"
        )
