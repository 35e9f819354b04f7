"""The drafts as torch modules: the reference for what model/drafts computes, under the same tensor names.

All say, from every place p of a text at once, the tokens p + 1, p + 2, ...: what `spoken[j]` holds at p leads through `head`
to logits for the token at p + 1 + j, if the tokens drafted before it are those of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from netgain.serving.model.config import ModelConfig
from netgain.serving.model.drafts.feature_head import one_layer
from netgain.serving.training.layer import DecoderLayer, RMSNorm, Seen


def _linear(ins: int, outs: int, bias: bool = False) -> nn.Linear:
    return nn.Linear(ins, outs, bias=bias)


class FeatureHeadModule(nn.Module):
    """See model/drafts/feature_head.py. `head` is over the tokens `ids`, which are no parameter."""

    def __init__(self, config: ModelConfig, taps: int, ids: Tensor) -> None:
        super().__init__()
        hidden = config.hidden
        self.fuse = _linear(taps * hidden, hidden)
        self.token_norm = RMSNorm(hidden, config.rms_eps)
        self.feature_norm = RMSNorm(hidden, config.rms_eps)
        self.input = _linear(2 * hidden, hidden)
        self.layer = DecoderLayer(one_layer(config))
        self.norm = RMSNorm(hidden, config.rms_eps)
        self.head = _linear(hidden, len(ids))
        self.register_buffer("ids", ids)

    def forward(self, embedded: Tensor, tapped: Tensor, passes: int) -> list[Tensor]:
        """embedded tokens [batch, places, H] and what the target's layers gave there, [batch, places, taps x H] -> `passes`
        times [batch, places, H], normed: what the head is to say a token from."""
        features = before(self.fuse(tapped))
        seen = Seen([], [])
        spoken = []
        for turn in range(passes):
            both = (self.token_norm(later(embedded, turn)), self.feature_norm(features))
            features = self.layer(self.input(torch.cat(both, dim=-1)), seen)
            spoken.append(self.norm(features))
        return spoken


class MedusaModule(nn.Module):
    """See model/drafts/medusa.py."""

    def __init__(self, config: ModelConfig, taps: int, ids: Tensor, positions: int) -> None:
        super().__init__()
        hidden = config.hidden
        self.fuse = _linear(taps * hidden, hidden)
        self.heads = nn.ModuleList(_linear(hidden, hidden, bias=True) for _ in range(positions))
        self.norm = RMSNorm(hidden, config.rms_eps)
        self.head = _linear(hidden, len(ids))
        self.register_buffer("ids", ids)

    def forward(self, embedded: Tensor, tapped: Tensor, passes: int) -> list[Tensor]:
        """As FeatureHeadModule; the tokens are not looked at."""
        features = before(self.fuse(tapped))
        return [self.norm(features + nn.functional.silu(head(features))) for head in self.heads[:passes]]


class LayersModule(nn.Module):
    """A model of some of the target's layers. It reads the text alone, and what it says of a guess that turns out right is
    what it would have said of the text. The head [len(ids), H] is no parameter."""

    def __init__(self, config: ModelConfig, layers: Sequence[int], ids: Tensor) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config, config.windows[layer]) for layer in layers)
        self.norm = RMSNorm(config.hidden, config.rms_eps)
        self.head = _linear(config.hidden, len(ids))
        self.register_buffer("ids", ids)

    def forward(self, embedded: Tensor, tapped: Tensor, passes: int) -> list[Tensor]:
        """As FeatureHeadModule; the features are not looked at."""
        x = embedded
        for layer in self.layers:
            x = layer(x, Seen([], []))
        spoken = self.norm(x)
        return [later(spoken, turn) for turn in range(passes)]


def before(x: Tensor) -> Tensor:
    """[batch, places, H] moved one place on: each place has what stood before it, the first zeros."""
    return torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)


def later(x: Tensor, places: int) -> Tensor:
    """[batch, places, H] moved back: each place has what stands so many later, the last ones zeros."""
    return x if not places else torch.cat((x[:, places:], torch.zeros_like(x[:, :places])), dim=1)
