"""Cosines and sines of rotary embeddings, from one table, since a vectorised cosine may round a number differently
depending on its neighbours."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from netgain.serving.model.rope import Rope

_PIECE = 256  # positions computed together: always the same ones, and too few for torch to share out among threads


class RotaryTable:
    """Rows for positions 0..context-1, computed as sequences reach them: a context is only a claim of the model's file."""

    def __init__(self, rope: Rope, head_dim: int, context: int, device: torch.device) -> None:
        self._frequencies = frequencies(rope, head_dim)
        self._attention_factor = rope.attention_factor
        self._context, self._device = context, device
        self._cos = self._sin = torch.empty(0, head_dim // 2, device=device)

    def rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions int64 [rows] -> cos and sin float32 [rows, head_dim / 2], times the attention factor."""
        last = int(positions.max()) if len(positions) else -1
        if last >= len(self._cos):
            self._grow(last + 1)
        return self._cos[positions], self._sin[positions]

    def _grow(self, rows: int) -> None:
        if rows > self._context:
            raise ValueError(f"position {rows - 1} is outside the context of {self._context} tokens")
        held = len(self._cos)
        rows = min(max(rows, 2 * held, 1024), -(-self._context // _PIECE) * _PIECE)
        starts = range(held, rows, _PIECE)
        angles = [
            torch.arange(start, start + _PIECE, dtype=torch.float32)[:, None] * self._frequencies for start in starts
        ]
        tables = (torch.cat([part.cos() for part in angles]), torch.cat([part.sin() for part in angles]))
        cos, sin = ((table * self._attention_factor).to(self._device) for table in tables)
        self._cos, self._sin = torch.cat([self._cos, cos]), torch.cat([self._sin, sin])


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Radians per position, float32 [head_dim / 2]. The steps are those of transformers, so that rounding agrees."""
    powers = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    plain = 1.0 / powers
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, powers, head_dim)
    if rope.kind == "divided":
        return 1.0 / (torch.tensor(rope.divisors, dtype=torch.float32) * powers)
    return plain


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Wavelengths above original / low are stretched by the factor, those below original / high are kept (Llama 3.1)."""
    low, high, original = rope.low_freq_factor, rope.high_freq_factor, rope.original_context
    wavelengths = 2 * math.pi / plain
    stretched = torch.where(wavelengths > original / low, plain / rope.factor, plain)
    smooth = (original / wavelengths - low) / (high - low)
    between = ~(wavelengths < original / high) * ~(wavelengths > original / low)
    return torch.where(between, (1 - smooth) * stretched / rope.factor + smooth * stretched, stretched)


def _yarn(rope: Rope, powers: Tensor, head_dim: int) -> Tensor:
    """Frequencies that turn more than beta_fast times in the original context are kept (arXiv:2309.00071)."""

    def dimension(rotations: float) -> float:
        return head_dim * math.log(rope.original_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (rope.factor * powers) * (1 - kept) + 1.0 / powers * kept
