"""From the name of a model to one that computes: the single entry for whoever builds an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from netgain.serving.model.checkpoint import Checkpoint, open_checkpoint
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.digest import files_digest
from netgain.serving.model.fetch import Report
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.llama import LlamaModel
from netgain.serving.model.template import ChatTemplate
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.model.weights import (
    GgufSource,
    SafetensorsSource,
    WeightSource,
    check_names,
    computed_type,
    expected_shapes,
)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run.

    `computed` lists the types its matrices are kept in. Digests are hex; `numerics` names everything that decides the
    bits of KV besides weights and tokens: those types, kernel path and version. `notes` say what a user should know
    about how it was loaded.
    """

    name: str
    config: ModelConfig
    model: LlamaModel
    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos: tuple[int, ...]
    computed: tuple[str, ...]
    weights_digest: str
    tokenizer_digest: str
    numerics: str
    notes: tuple[str, ...]


def load_model(
    source: str | Path,
    dtype: str,
    kernels: Kernels,
    device: torch.device | str = "cpu",
    report: Report | None = None,
) -> LoadedModel:
    """Load `source` (see open_checkpoint) with compute type "auto", "fp32" or "bf16" (see llama.pack)."""
    checkpoint = open_checkpoint(source, report)
    weights = weight_source(checkpoint)
    notes = check_names(weights, checkpoint.config)
    model = LlamaModel(checkpoint.config, weights, kernels, dtype, torch.device(device))
    matrices = [weights.kind(name) for name, shape in expected_shapes(checkpoint.config).items() if len(shape) == 2]
    computed = tuple(sorted({computed_type(kind, dtype) for kind in matrices}))
    if dtype != "bf16" and "F16" in matrices:
        notes += (
            "float16 weights are computed as float32: the kernels have no float16, and bfloat16 would round them",
        )
    return LoadedModel(
        name=checkpoint.name,
        config=checkpoint.config,
        model=model,
        tokenizer=checkpoint.tokenizer,
        template=checkpoint.template,
        eos=checkpoint.eos,
        computed=computed,
        weights_digest=files_digest(weights.files),
        tokenizer_digest=checkpoint.tokenizer.digest,
        numerics=f"{'+'.join(computed)};{kernels.name}",
        notes=notes,
    )


def weight_source(checkpoint: Checkpoint) -> WeightSource:
    """The checkpoint's tensors; opens the files."""
    if checkpoint.gguf is not None:
        return GgufSource(checkpoint.gguf, checkpoint.config)
    return SafetensorsSource(checkpoint.path)
