"""A Decoder's forward pass that may be held up between groups of its layers, for KV that arrives layer by layer."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from netgain.serving.model.decoder import Decoder
from netgain.serving.model.kernels.protocol import AttentionPlan, Stack
from netgain.serving.model.kv import KVView, LayersFrom


class GroupedForward:
    """`begin`, then `run` for each group of layers in order, then `finish`: the bits of Decoder.forward. One pass at a time."""

    def __init__(self, decoder: Decoder, starts: tuple[int, ...]) -> None:
        """`starts` are the first layers of the groups, ascending, the first of them 0."""
        layers = decoder.config.layers
        if not starts or starts[0] != 0 or list(starts) != sorted(set(starts)) or starts[-1] >= layers:
            raise ValueError(f"{starts} are no first layers of groups of {layers} layers")
        self.starts = starts
        self._decoder = decoder
        self._groups = [_group(decoder, first, end) for first, end in zip(starts, (*starts[1:], layers), strict=True)]
        self._views: tuple[weakref.ref[KVView], list[KVView]] | None = None

    @torch.inference_mode()
    def begin(
        self,
        tokens: Tensor,
        positions: Tensor,
        plan: AttentionPlan,
        kv: KVView,
        logits_rows: Tensor,
        tapped: Tensor | None = None,
    ) -> None:
        """As for Decoder.forward."""
        self._plan, self._logits_rows, self._tapped = plan, logits_rows, tapped
        self._cos, self._sin = self._decoder.rotary.rows(positions)
        self._x = self._decoder.embed(tokens)
        if self._views is None or self._views[0]() is not kv:
            self._views = weakref.ref(kv), [LayersFrom(kv, first) for first in self.starts]

    @torch.inference_mode()
    def run(self, group: int) -> None:
        assert self._views is not None, "begin comes first"
        stack, taps = self._groups[group]
        picked = self._logits_rows if group == len(self._groups) - 1 else None
        hidden = self._decoder.config.hidden
        tapped = None
        if taps and self._tapped is not None:
            tapped = self._x.new_empty(len(self._x), len(taps) * hidden)
        self._x = stack(self._x, self._cos, self._sin, self._views[1][group], self._plan, picked, tapped)
        if tapped is not None and self._tapped is not None:
            self._tapped[:, taps[0] * hidden : (taps[-1] + 1) * hidden] = tapped

    @torch.inference_mode()
    def finish(self, out: Tensor | None) -> Tensor:
        """The logits."""
        x = self._x
        del self._x, self._plan, self._logits_rows, self._cos, self._sin, self._tapped
        return self._decoder.head(x, out)


def _group(decoder: Decoder, first: int, end: int) -> tuple[Stack, range]:
    """A group of layers, and which of the decoder's taps lie in it."""
    halves = [half for layer in decoder.layers[first:end] for half in layer.halves]
    inside = [place for place, tap in enumerate(decoder.taps) if first <= tap < end]
    taps = [2 * (decoder.taps[place] - first) + 1 for place in inside]
    return decoder.kernels.stack(halves, taps=taps), range(inside[0], inside[-1] + 1) if inside else range(0)
