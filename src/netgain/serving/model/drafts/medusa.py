"""Medusa heads (arXiv:2401.10774): each says the token some places ahead from the same feature, in one pass, without
knowing what the others say.

Tensors of the file, H being the target's hidden size: `fuse.weight` [H, taps x H]; for head i `heads.i.weight` [H, H] and
`heads.i.bias` [H]; `norm.weight` [H]; `head.weight` [rows, H], shared, and `ids` int64 [rows], ascending.
"""

from __future__ import annotations

import torch
from torch import Tensor

from netgain.serving.model.config import ModelConfig
from netgain.serving.model.drafts.feature_head import said_ids
from netgain.serving.model.kernels.composed import product
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.tensors import Tensors
from netgain.serving.model.weights import WeightSource


class MedusaHeads:
    """Head i, from 0, reads the feature of the last position that the target has computed and says the token i + 2 places
    behind it: the one next to it the target has chosen already. Holds no request state."""

    reads_text = False

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        kernels: Kernels,
        device: torch.device,
        count: int,
        dtype: str = "bf16",
    ) -> None:
        """`dtype` of DTYPES is how the matrices are kept."""
        tensors = Tensors(source, kernels, dtype, device)
        self._kernels, self._eps = kernels, config.rms_eps
        self._fuse = tensors.linear("fuse")
        self._heads = [tensors.linear(f"heads.{number}", bias=True) for number in range(count)]
        self._norm = tensors.vector("norm.weight")
        self._head = tensors.linear("head")
        self.ids = said_ids(source, config.vocab).to(device)
        linears = (self._fuse, self._head, *self._heads)
        self.weight_bytes = sum(weight.nbytes for linear in linears for weight in linear.weights)

    @property
    def count(self) -> int:
        return len(self._heads)

    @torch.inference_mode()
    def fuse(self, tapped: Tensor) -> Tensor:
        """What the target's layers gave, float32 [rows, taps x H] -> features [rows, H]."""
        return product(self._kernels, tapped, self._fuse)

    @torch.inference_mode()
    def forward(self, features: Tensor, number: int) -> Tensor:
        """features [rows, H] -> logits over `ids` [rows, len(ids)] of head `number`."""
        kernels = self._kernels
        x = features + torch.nn.functional.silu(product(kernels, features, self._heads[number]))
        return product(kernels, kernels.rms_norm(x, self._norm, self._eps), self._head)
