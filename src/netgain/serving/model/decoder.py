"""The forward pass of decoder-only transformers over paged KV: which operation follows which, driven by the facts of a
ModelConfig alone, and nothing about how they compute."""

from __future__ import annotations

import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.kernels.composed import product
from netgain.serving.model.kernels.protocol import AttentionPlan, Kernels, Linear
from netgain.serving.model.kv import KVView
from netgain.serving.model.rotary import RotaryTable
from netgain.serving.model.tensors import Tensors, pack
from netgain.serving.model.weights import DTYPES, EMBEDDING, HEAD, NORM, WeightSource


class Decoder:
    """Weights packed for one Kernels implementation. Holds no request state; one forward at a time.

    KV outside a layer's window stays allocated: a block belongs to all layers, and others may see it.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        kernels: Kernels,
        dtype: str,
        device: torch.device,
        taps: tuple[int, ...] = (),
        activations: str = "auto",
    ) -> None:
        """`taps` are layers, in ascending order, whose outputs `forward` writes down when it is asked to; -1 is the last."""
        if dtype not in DTYPES:
            raise UsageError(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
        self.config = config
        self.device = device
        self.kernels = kernels
        taps = tuple(tap % config.layers for tap in taps)

        tensors = Tensors(source, kernels, dtype, device, activations)
        self.layers = layers = [
            tensors.layer(config, f"model.layers.{number}.", window) for number, window in enumerate(config.windows)
        ]
        self._linears = [linear for layer in layers for linear in layer.linears]
        self.taps = taps
        halves = [half for layer in layers for half in layer.halves]
        self._stack = kernels.stack(halves, taps=[2 * tap + 1 for tap in taps])
        (self._embedding,) = pack(kernels, source, [EMBEDDING], dtype, activations if config.tied else "auto")
        head = (self._embedding,) if config.tied else pack(kernels, source, [HEAD], dtype, activations)
        self._head = Linear(head)
        self._norm = tensors.vector(NORM)
        self.rotary = RotaryTable(config.rope, config.head_dim, config.context, device)

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed matrices, as the kernels hold them."""
        shared = () if self.config.tied else self._head.weights
        return sum(w.nbytes for w in (self._embedding, *shared, *(w for part in self._linears for w in part.weights)))

    @property
    def step_weight_bytes(self) -> int:
        """The part of it that every step reads whole: of an embedding that is not the head, only a few rows are read."""
        return self.weight_bytes - (0 if self.config.tied else self._embedding.nbytes)

    @property
    def tap_width(self) -> int:
        """Of what all taps give for one token."""
        return len(self.taps) * self.config.hidden

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens int64 [rows] -> float32 [rows, hidden]."""
        return self.kernels.embed(tokens, self._embedding)

    @torch.inference_mode()
    def normed(self, x: Tensor) -> Tensor:
        """What stands behind the last layer, float32 [rows, hidden], as the head reads it."""
        return self.kernels.rms_norm(x, self._norm, self.config.rms_eps)

    @torch.inference_mode()
    def logits(self, normed: Tensor, out: Tensor | None = None) -> Tensor:
        """normed [rows, hidden] -> [rows, vocab], written to `out` if it is given."""
        return product(self.kernels, normed, self._head, out)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        plan: AttentionPlan,
        kv: KVView,
        logits_rows: Tensor,
        out: Tensor | None = None,
        tapped: Tensor | None = None,
    ) -> Tensor:
        """tokens, positions int64 [rows]; logits_rows int64 [m] indexes them -> float32 logits [m, vocab], written to `out`
        if it is given.

        Writes the KV of every row as `plan` says (see Kernels.plan); token ids and positions must lie within the
        model's vocabulary and context. What stands behind each of `taps` is written side by side to `tapped`, float32 [rows,
        tap_width], if that is given.
        """
        cos, sin = self.rotary.rows(positions)
        x = self._stack(self.embed(tokens), cos, sin, kv, plan, logits_rows, tapped)
        return self.head(x, out)

    def head(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """What the last layer gave for some rows [m, hidden] -> float32 logits [m, vocab]."""
        return self.logits(self.normed(x), out)
