"""A Decoder's forward pass that may be held up between groups of its layers, for KV that arrives layer by layer."""

from __future__ import annotations

import weakref
from itertools import pairwise

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
        self._groups = [_parts(decoder, first, end) for first, end in zip(starts, (*starts[1:], layers), strict=True)]
        self._views: tuple[weakref.ref[KVView], dict[int, KVView]] | None = None

    @torch.inference_mode()
    def begin(self, tokens: Tensor, positions: Tensor, plan: AttentionPlan, kv: KVView, logits_rows: Tensor) -> None:
        """As for Decoder.forward."""
        self._plan, self._logits_rows = plan, logits_rows
        self._cos, self._sin = self._decoder.rotary.rows(positions)
        self._x = self._decoder.embed(tokens)
        self._tapped: list[Tensor] = []
        if self._views is None or self._views[0]() is not kv:
            firsts = [first for group in self._groups for first, _, _ in group]
            self._views = weakref.ref(kv), {first: LayersFrom(kv, first) for first in firsts}

    @torch.inference_mode()
    def run(self, group: int) -> None:
        assert self._views is not None, "begin comes first"
        taps = self._decoder.taps
        for first, end, stack in self._groups[group]:
            ends = end == self._decoder.config.layers and end - 1 not in taps
            rows = self._logits_rows if ends else None
            self._x = stack(self._x, self._cos, self._sin, self._views[1][first], self._plan, rows)
            if end - 1 in taps:
                self._tapped.append(self._x)

    @torch.inference_mode()
    def finish(self, out: Tensor | None, tapped: list[Tensor]) -> Tensor:
        """The logits; what stands behind the decoder's taps is appended to `tapped`."""
        x = self._x
        if self._decoder.config.layers - 1 in self._decoder.taps:
            x = x[self._logits_rows]
        tapped += self._tapped
        del self._x, self._plan, self._logits_rows, self._cos, self._sin, self._tapped
        return self._decoder.head(x, out)


def _parts(decoder: Decoder, first: int, end: int) -> list[tuple[int, int, Stack]]:
    """A group of layers, cut behind the decoder's taps: first layer, the one behind the last, and both and all between."""
    cuts = [first, *(tap + 1 for tap in decoder.taps if first <= tap < end - 1), end]
    return [
        (start, stop, decoder.kernels.stack([half for layer in decoder.layers[start:stop] for half in layer.halves]))
        for start, stop in pairwise(cuts)
    ]
