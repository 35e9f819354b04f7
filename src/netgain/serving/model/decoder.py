"""The forward pass of decoder-only transformers over paged KV: which operation follows which, driven by the facts of a
ModelConfig alone, and nothing about how they compute."""

from __future__ import annotations

import weakref
from itertools import pairwise

import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.kernels.composed import product
from netgain.serving.model.kernels.protocol import AttentionPlan, Kernels, Linear
from netgain.serving.model.kv import KVView, LayersFrom
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
    ) -> None:
        """`taps` are layers, in ascending order, whose outputs `forward` hands out when it is asked to; -1 is the last."""
        if dtype not in DTYPES:
            raise UsageError(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
        self.config = config
        self.device = device
        self.kernels = kernels
        taps = tuple(tap % config.layers for tap in taps)

        tensors = Tensors(source, kernels, dtype, device)
        self.layers = layers = [
            tensors.layer(config, f"model.layers.{number}.", window) for number, window in enumerate(config.windows)
        ]
        self._linears = [linear for layer in layers for linear in layer.linears]
        ends = [0, *(layer + 1 for layer in taps), config.layers]
        self._first_layers = ends[:-1]
        # a tap behind the last layer leaves a part without a layer, which is none
        self._stacks = [
            kernels.stack([half for layer in layers[start:end] for half in layer.halves])
            for start, end in pairwise(ends)
            if start < end
        ]
        self.taps = taps
        self._views: tuple[weakref.ref[KVView], list[KVView]] | None = None
        (self._embedding,) = pack(kernels, source, [EMBEDDING], dtype)
        self._head = Linear((self._embedding,) if config.tied else pack(kernels, source, [HEAD], dtype))
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

    def _parts_of(self, kv: KVView) -> list[KVView]:
        """The KV of each stack's layers; the same objects as long as `kv` is."""
        if not self.taps:
            return [kv]
        if self._views is None or self._views[0]() is not kv:
            self._views = weakref.ref(kv), [LayersFrom(kv, first) for first in self._first_layers[: len(self._stacks)]]
        return self._views[1]

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        plan: AttentionPlan,
        kv: KVView,
        logits_rows: Tensor,
        out: Tensor | None = None,
        tapped: list[Tensor] | None = None,
    ) -> Tensor:
        """tokens, positions int64 [rows]; logits_rows int64 [m] indexes them -> float32 logits [m, vocab], written to `out`
        if it is given.

        Writes the KV of every row as `plan` says (see Kernels.plan); token ids and positions must lie within the
        model's vocabulary and context. What stands behind each of `taps`, float32 [rows, hidden], is appended to `tapped`.
        """
        cos, sin = self.rotary.rows(positions)
        x = self.embed(tokens)
        for index, (stack, view) in enumerate(zip(self._stacks, self._parts_of(kv), strict=True)):
            tap = index < len(self.taps)
            x = stack(x, cos, sin, view, plan, None if tap else logits_rows)
            if tap and tapped is not None:
                tapped.append(x)
        if len(self._stacks) == len(self.taps):
            x = x[logits_rows]
        return self.head(x, out)

    def head(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """What the last layer gave for some rows [m, hidden] -> float32 logits [m, vocab]."""
        return self.logits(self.normed(x), out)
