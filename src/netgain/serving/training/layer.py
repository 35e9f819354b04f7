"""A decoder layer in torch, with gradients: what model/drafts computes with the engine's kernels, as plain formulas."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from netgain.serving.model.config import ModelConfig
from netgain.serving.model.rotary import RotaryTable

AHEAD = 64  # positions that a chain of drafts may reach beyond the context, where nobody looks at what it says


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


@dataclass
class Seen:
    """What the passes of a chain of drafts have left: keys and values [batch, kv heads, places, head_dim] of each pass."""

    keys: list[Tensor]
    values: list[Tensor]


class Attention(nn.Module):
    """Names are Hugging Face's. A pass j > 0 reads guesses: the row at place p stands j positions behind it, and sees what
    pass 0 saw up to p and, of each later pass, its own place alone. So one call computes a chain of drafts from every
    place at once (the training-time test of arXiv:2503.01840)."""

    def __init__(self, config: ModelConfig, window: int | None = None) -> None:
        super().__init__()
        hidden, queries, keys = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(hidden, queries, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, keys, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, keys, bias=config.qkv_bias)
        self.o_proj = nn.Linear(queries, hidden, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_eps)
            self.k_norm = RMSNorm(config.head_dim, config.rms_eps)
        self._normed = config.qk_norm
        self._heads, self._kv_heads, self._dim = config.heads, config.kv_heads, config.head_dim
        self._window = window
        self._rotary = RotaryTable(config.rope, config.head_dim, config.context + AHEAD, torch.device("cpu"))

    def forward(self, x: Tensor, seen: Seen) -> Tensor:
        """x [batch, places, hidden] of pass len(seen.keys), whose keys and values are added to `seen`."""
        batch, places, _ = x.shape
        turn = len(seen.keys)
        shape = (batch, places, -1, self._dim)
        q, k, v = (product(x).view(shape).transpose(1, 2) for product in (self.q_proj, self.k_proj, self.v_proj))
        if self._normed:
            q, k = self.q_norm(q), self.k_norm(k)
        with torch.no_grad():
            cos, sin = self._rotary.rows(torch.arange(turn, turn + places))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        seen.keys.append(k)
        seen.values.append(v)
        group = self._heads // self._kv_heads
        q = q.view(batch, self._kv_heads, group, places, self._dim) * self._dim**-0.5
        text = q @ seen.keys[0][:, :, None].transpose(-1, -2)
        text = text.masked_fill(~_visible(places, turn, self._window), -torch.inf)
        own = [(q * key[:, :, None]).sum(-1, keepdim=True) for key in seen.keys[1:]]
        weights = torch.cat([text, *own], dim=-1).softmax(-1)
        mixed = weights[..., :places] @ seen.values[0][:, :, None]
        for guess, value in enumerate(seen.values[1:]):
            mixed = mixed + weights[..., places + guess, None] * value[:, :, None]
        return self.o_proj(mixed.reshape(batch, self._heads, places, self._dim).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, window: int | None = None) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.rms_eps)
        self.self_attn = Attention(config, window)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.rms_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, seen: Seen) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), seen)
        return x + self.mlp(self.post_attention_layernorm(x))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, places, dim] in halves; cos and sin [places, dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _visible(places: int, turn: int, window: int | None) -> Tensor:
    """bool [places, places]: which of the text's places a row of pass `turn` sees."""
    place = torch.arange(places)
    distance = place[:, None] - place[None]
    seen = distance >= 0
    return seen if window is None else seen & (distance + turn < window)
