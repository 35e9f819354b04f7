"""From the name of a model to one that computes: the single entry for whoever builds an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from netgain.serving.blocks.keys import Namespace
from netgain.serving.model.checkpoint import Checkpoint, open_checkpoint
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.decoder import Decoder
from netgain.serving.model.digest import files_digest
from netgain.serving.model.fetch import Report
from netgain.serving.model.gguf_source import GgufSource
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.quantise import GROUP
from netgain.serving.model.quantise import VERSION as QUANTISER
from netgain.serving.model.safetensors_source import SafetensorsSource
from netgain.serving.model.template import ChatTemplate
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.model.weights import (
    QUANTISED,
    WeightSource,
    check_names,
    computed_types,
    matrix_bytes,
    product_ops,
    some,
    used_activations,
)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, read from the file or folder `path`.

    `computed` lists the types its matrices are kept and multiplied in (see computed_types), `activations` what they are
    multiplied with. Digests are hex; `numerics` names everything that decides the
    bits of KV besides weights and tokens: how the files' numbers were rounded, to which types, kernel path and version.
    `notes` say what a user should know about how it was loaded. `layer_ops` and `head_ops` are as product_ops counts them.
    """

    name: str
    path: Path
    config: ModelConfig
    model: Decoder
    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos: tuple[int, ...]
    computed: tuple[str, ...]
    activations: tuple[str, ...]
    weights_digest: str
    tokenizer_digest: str
    numerics: str
    notes: tuple[str, ...]
    layer_ops: dict[str, int]
    head_ops: dict[str, int]

    def namespace(self, kv_dtype: torch.dtype) -> Namespace:
        """What its KV of this type depends on besides tokens."""
        return Namespace(
            weights=self.weights_digest,
            tokenizer=self.tokenizer_digest,
            rope=repr(self.config.rope),
            kv_dtype=str(kv_dtype).removeprefix("torch."),
            numerics=self.numerics,
        )


def load_model(
    source: str | Path,
    dtype: str,
    kernels: Kernels,
    device: torch.device | str = "cpu",
    taps: tuple[int, ...] = (),
    activations: str = "auto",
    report: Report | None = None,
) -> LoadedModel:
    """Load `source` (see open_checkpoint) with compute type of DTYPES (see computed_type) and activations of ACTIVATIONS (see
    activations_of); `taps` are the Decoder's."""
    checkpoint = open_checkpoint(source, report)
    weights = weight_source(checkpoint)
    notes = reading_notes(checkpoint, weights, dtype)
    types = computed_types(weights, checkpoint.config, dtype, activations)
    computed = tuple(sorted(set(types.values())))
    model = Decoder(checkpoint.config, weights, kernels, dtype, torch.device(device), taps, activations)
    layer_ops, head_ops = product_ops(weights, checkpoint.config, dtype, activations)
    return LoadedModel(
        name=checkpoint.name,
        path=checkpoint.path,
        config=checkpoint.config,
        model=model,
        tokenizer=checkpoint.tokenizer,
        template=checkpoint.template,
        eos=checkpoint.eos,
        computed=computed,
        activations=used_activations(types, checkpoint.config),
        weights_digest=files_digest(weights.files),
        tokenizer_digest=checkpoint.tokenizer.digest,
        numerics=f"{rounding(dtype)};{'+'.join(computed)};{kernels.name}",
        notes=notes,
        layer_ops=layer_ops,
        head_ops=head_ops,
    )


def rounding(dtype: str) -> str:
    """What a compute type of DTYPES does to the numbers of a file, as part of the numerics id."""
    return f"{dtype}-v{QUANTISER}" if dtype in QUANTISED else dtype


def reading_notes(checkpoint: Checkpoint, weights: WeightSource, dtype: str) -> tuple[str, ...]:
    """What a user should know about how these files are read under a compute type. Raises UsageError as check_names does."""
    config = checkpoint.config
    notes = config.notes + check_names(weights, config)
    computed = computed_types(weights, config, dtype)
    rounded = sorted({weights.kind(name) for name, kind in computed.items() if kind == "BF16"} - {"F32", "BF16", "F16"})
    if dtype in QUANTISED and (odd := [name for name, kind in computed.items() if kind == "BF16"]):
        notes += (
            f"{some(odd)} kept in bfloat16 and not in {dtype}: the rows do not divide into groups of {GROUP} numbers",
        )
    if rounded and dtype == "auto":
        taken, exact = (matrix_bytes(weights, config, form) / 1e6 for form in ("auto", "fp32"))
        notes += (
            f"{', '.join(rounded)} matrices are dequantised and kept in bfloat16, which rounds them; the weights take "
            f"{taken:,.1f} MB; --set engine.model.dtype=fp32 keeps every digit in {exact:,.1f} MB",
        )
    return notes


def weight_source(checkpoint: Checkpoint) -> WeightSource:
    """The checkpoint's tensors; opens the files."""
    if checkpoint.gguf is not None:
        return GgufSource(checkpoint.gguf, checkpoint.config)
    return SafetensorsSource(checkpoint.path)
