"""A student as a draft on disk: weights first, then the manifest that names them, each replaced in one move."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from netgain.serving.model.checkpoint import Checkpoint
from netgain.serving.model.convert import convert
from netgain.serving.model.drafts.manifest import WEIGHTS, Manifest, write_manifest
from netgain.serving.training.students import Student

WORK = "training"  # a folder beside the draft, for what a resumed training needs; removed when it is done
MODEL = "model.safetensors"  # of the kind `layers`, which is a model's folder


def prepare_folder(folder: Path, checkpoint: Checkpoint, layers: tuple[int, ...]) -> None:
    """What a draft of kind `layers` has beside what is trained. Raises UsageError for a folder that holds something."""
    if layers and not (folder / "config.json").exists():
        convert(checkpoint, folder, "bf16", layers)


def save_draft(folder: Path, student: Student, manifest: Manifest) -> None:
    """Raises OSError."""
    tensors = student.tensors()
    name = WEIGHTS
    if student.kind == "layers":
        name = MODEL
        tensors = {**load_file(folder / MODEL), **{key: value.to(torch.bfloat16) for key, value in tensors.items()}}
    _replace(folder / name, tensors)
    write_manifest(folder, manifest)


def _replace(path: Path, tensors: dict[str, Tensor]) -> None:
    part = path.with_name(f"{path.name}.part")
    save_file(tensors, part, metadata={"format": "pt"})
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.chmod(0o644)  # the library makes it readable by its owner only
    part.replace(path)
