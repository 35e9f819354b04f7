"""How each kind of draft begins, what of it learns, and which tensors its file has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.convert import layer_numbers
from netgain.serving.model.drafts.manifest import Kind
from netgain.serving.model.weights import EMBEDDING, HEAD, NORM, WeightSource
from netgain.serving.training.modules import FeatureHeadModule, LayersModule, MedusaModule

KINDS: tuple[Kind, ...] = ("feature", "medusa", "layers")


ALONE = 0.75  # of a training comes before guesses are read: two passes take twice the time, and lean on the first


@dataclass(frozen=True)
class Target:
    """What a student takes from the model that it learns from, float32: the embedding of all tokens, the head's rows of
    those that a draft can say, the last norm; `scale` is the root mean square of what its last layer gives. `every` has
    the head's rows of all tokens, for a student that can say them all."""

    config: ModelConfig
    source: WeightSource
    embedding: Tensor
    ids: Tensor
    head: Tensor
    norm: Tensor
    scale: float
    every: Tensor | None = None

    def law(self, last: Tensor) -> Tensor:
        """last [rows, H], what stands behind the last layer -> logits [rows, len(ids)]."""
        scale = torch.rsqrt(last.pow(2).mean(-1, keepdim=True) + self.config.rms_eps)
        return (last * scale * self.norm) @ self.head.T


def target_of(kind: Kind, source: WeightSource, config: ModelConfig, ids: Tensor, scale: float) -> Target:
    embedding = source.dense(EMBEDDING).float()
    rows = embedding if config.tied else source.dense(HEAD).float()
    every = rows if kind == "layers" else None
    return Target(config, source, embedding, ids, rows[ids].contiguous(), source.dense(NORM).float(), scale, every)


@dataclass(frozen=True)
class Student:
    """A module with the passes that it needs. `chains`: what it says further on depends on its own guesses, which it learns
    to live with in the last quarter of its training. `rate` is the highest learning rate."""

    kind: Kind
    module: nn.Module
    positions: int
    chains: bool
    rate: float

    def passes(self, share_done: float) -> int:
        """Of one training step, when `share_done` of the training is over."""
        if self.kind == "medusa":
            return self.positions
        return self.positions if self.chains and share_done >= ALONE else 1

    def tensors(self) -> dict[str, Tensor]:
        """As the file has them: matrices bfloat16, vectors float32, the ids int64. Of `layers` only what it trained."""
        state = self.module.state_dict()
        if self.kind == "layers":
            state = {f"model.{name}": tensor for name, tensor in state.items() if not name.startswith(("head.", "ids"))}
        return {
            name: (tensor.to(torch.bfloat16) if tensor.ndim > 1 else tensor).detach().clone()
            for name, tensor in state.items()
        }


def default_taps(kind: Kind, layers: int) -> tuple[int, ...]:
    """A feature head sees a third, two thirds and all of the target, as EAGLE-3 does; the last one always ends the list, since
    the target's law is worked out from it."""
    if kind != "feature":
        return (layers - 1,)
    return tuple(sorted({max(0, layers // 3 - 1), max(0, 2 * layers // 3 - 1), layers - 1}))


def feature_student(target: Target, taps: tuple[int, ...], positions: int, layers: Sequence[int]) -> Student:
    """Begins as the target's last layer over its last feature and, faintly, the next token: fuse and input let the last tap
    through, at the size that the layer is used to."""
    config = target.config
    module = FeatureHeadModule(config, len(taps), target.ids)
    _copy_layer(module.layer, target.source, config.layers - 1)
    with torch.no_grad():
        _let_last_through(module.fuse.weight, config.hidden)
        module.input.weight.copy_(torch.cat((torch.eye(config.hidden), torch.eye(config.hidden)), dim=1))
        module.feature_norm.weight.fill_(target.scale)
    _share_head(module, target)
    return Student("feature", module, positions, True, 1.5e-3)


def medusa_student(target: Target, taps: tuple[int, ...], positions: int, layers: Sequence[int]) -> Student:
    """Every head begins by saying what the target says of the token before: its own part is zero."""
    module = MedusaModule(target.config, len(taps), target.ids, positions)
    with torch.no_grad():
        _let_last_through(module.fuse.weight, target.config.hidden)
        for head in module.heads:
            head.weight.zero_()
            head.bias.zero_()
    _share_head(module, target)
    return Student("medusa", module, positions, False, 1e-3)


def layers_student(target: Target, taps: tuple[int, ...], positions: int, layers: Sequence[int]) -> Student:
    """Begins as a copy of the chosen layers."""
    module = LayersModule(target.config, layers, target.ids)
    for layer, number in zip(module.layers, layers, strict=True):
        _copy_layer(layer, target.source, number)
    _share_head(module, target)
    return Student("layers", module, positions, False, 5e-4)


BUILD: Mapping[Kind, Callable[[Target, tuple[int, ...], int, Sequence[int]], Student]] = MappingProxyType(
    {"feature": feature_student, "medusa": medusa_student, "layers": layers_student}
)


def chosen_layers(text: str | None, kind: Kind, layers: int) -> tuple[int, ...]:
    """The layers that a draft of the kind `layers` keeps, by default a seventh of the first ones and the last."""
    if kind != "layers":
        if text is not None:
            raise UsageError(f"--layers chooses what a draft of kind layers keeps; kind {kind} has no use for it")
        return ()
    if text is None:
        return tuple(sorted({*range(max(1, layers // 7)), layers - 1}))
    chosen = layer_numbers(text)
    for layer in chosen:
        if layer >= layers:
            raise UsageError(f"layer {layer} is none of the model's, which are 0 to {layers - 1}")
    return chosen


def _share_head(module: nn.Module, target: Target) -> None:
    """The target's rows, which stay as they are: training them takes more texts than there is time for."""
    with torch.no_grad():
        module.norm.weight.copy_(target.norm)
        module.head.weight.copy_(target.head)
    module.head.weight.requires_grad_(False)


def _let_last_through(fuse: Tensor, hidden: int) -> None:
    fuse.zero_()
    fuse[:, -hidden:] = torch.eye(hidden)


def _copy_layer(module: nn.Module, source: WeightSource, number: int) -> None:
    start = f"model.layers.{number}."
    module.load_state_dict({name: source.dense(f"{start}{name}").float() for name in module.state_dict()})
