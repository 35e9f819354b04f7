"""What a draft on disk is and takes, without its target."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.drafts.manifest import WEIGHTS, Manifest, read_manifest
from netgain.serving.model.features import FeaturePlane
from netgain.serving.model.load import weight_source
from netgain.serving.model.safetensors_source import SafetensorsSource
from netgain.serving.model.weights import WeightSource, check_names
from netgain.serving.training.saving import WORK

_VALUE_BYTES = 2  # of keys and values in bfloat16


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """`token_bytes` is what the draft takes of every token in the KV cache, with KV kept in bfloat16."""

    folder: str
    manifest: Manifest
    parameters: int
    file_bytes: int
    token_bytes: int
    tokens_it_can_say: int
    finished: bool


def inspect(folder: Path) -> Facts:
    """Raises UsageError for what is no draft, is damaged, or lacks a tensor."""
    manifest = read_manifest(folder)
    if manifest.kind == "layers":
        checkpoint = open_checkpoint(folder)
        source = weight_source(checkpoint)
        check_names(source, checkpoint.config)
        token_bytes, says = checkpoint.config.kv_values_per_token * _VALUE_BYTES, checkpoint.config.vocab
    else:
        source = SafetensorsSource(folder, WEIGHTS)
        token_bytes, says = _head_token_bytes(source, manifest), _shape(source, "ids")[0]
        _shape(source, "head.weight")
    return Facts(
        folder=str(folder),
        manifest=manifest,
        parameters=sum(math.prod(source.shape(name)) for name in source.names() if name != "ids"),
        file_bytes=sum(file.stat().st_size for file in source.files),
        token_bytes=token_bytes,
        tokens_it_can_say=says,
        finished=not (folder / WORK).exists(),
    )


def _head_token_bytes(source: WeightSource, manifest: Manifest) -> int:
    """What it keeps of the target's taps, and the keys and values of its own layer if it has one."""
    features = FeaturePlane.bytes_per_token(_shape(source, "fuse.weight")[1])
    if manifest.kind == "medusa":
        return features
    return features + sum(_VALUE_BYTES * _shape(source, f"layer.self_attn.{part}_proj.weight")[0] for part in "kv")


def _shape(source: WeightSource, name: str) -> tuple[int, ...]:
    if name not in source.names():
        raise UsageError(f"{source.files[0]}: tensor {name} is missing; train the draft again")
    return source.shape(name)
