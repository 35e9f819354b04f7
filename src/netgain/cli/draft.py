"""`netgain draft`: train a draft for a model on the model's own replies, look into one, measure what it is worth."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from netgain.cli.draft_surface import surface
from netgain.errors import UsageError

if TYPE_CHECKING:
    from netgain.serving.training.evaluate import Evaluation
    from netgain.serving.training.inspect import Facts
    from netgain.serving.training.prompts import Prompt

app = typer.Typer(no_args_is_help=True, help="Train, inspect and evaluate drafts for speculation.")
app.command()(surface)

KINDS = ("feature", "medusa", "layers")
INTERRUPTED = 130

_TARGET = typer.Argument(help="The model: 'default', a .gguf file, a Hugging Face folder, or an id.")
_FOLDER = typer.Argument(help="The draft's folder.", metavar="FOLDER")
_THREADS = typer.Option(min=1, help="Compute threads; by default one per core.")
_JSON = typer.Option("--json", help="As one JSON object.")


@app.command()
def train(
    target: Annotated[str, _TARGET],
    out: Annotated[Path, typer.Option("--out", help="Folder to write; must be new, or with --resume begun.")],
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")] = "feature",
    prompts: Annotated[
        Path | None,
        typer.Option(help="Your prompts: .jsonl (messages, prompt or turns), or text with one a line.", metavar="FILE"),
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time for all of it; ignored with --steps.")] = 20.0,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps instead of a time.")] = None,
    vocab: Annotated[int, typer.Option(min=16, help="Tokens that a draft can say: the most frequent.")] = 4096,
    positions: Annotated[int, typer.Option(min=1, max=8, help="Tokens ahead that it is trained to say.")] = 2,
    layers: Annotated[str | None, typer.Option(help="Kind layers: those of the target to keep, like 0-3,29.")] = None,
    replies: Annotated[int | None, typer.Option(min=2, help="Replies of the target to learn from, at most.")] = None,
    reply_tokens: Annotated[int, typer.Option(min=4, help="Tokens of a reply, at most.")] = 160,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    threads: Annotated[int | None, _THREADS] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a training that was stopped.")] = False,
) -> None:
    """Train a draft on replies of the target. Ctrl-C leaves a draft that can be used, and resumed."""
    if kind not in KINDS:
        raise UsageError(f"--kind {kind!r} is none of {', '.join(KINDS)}")
    from netgain.cli.draft_progress import TrainingProgress
    from netgain.folders import cache_folder
    from netgain.serving.training.prompts import bundled_prompts, read_prompts
    from netgain.serving.training.train import Recipe
    from netgain.serving.training.train import train as make

    recipe = Recipe(
        kind=cast(Any, kind),
        minutes=minutes,
        steps=steps,
        vocab=vocab,
        positions=positions,
        layers=layers,
        seed=seed,
        reply_tokens=reply_tokens,
        replies=replies,
        threads=threads,
    )
    asked = bundled_prompts() if prompts is None else read_prompts(prompts)
    try:
        with TrainingProgress() as progress:
            manifest = make(target, out, asked, recipe, cache=cache_folder(), resume=resume, tell=progress.tell)
    except KeyboardInterrupt:
        print("netgain: stopped before training began; what was generated is kept, --resume goes on", file=sys.stderr)
        raise
    if manifest is None:
        print(f"netgain: stopped; {out} holds what was learnt so far, --resume goes on", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    print(_acceptance_line(manifest.acceptance, manifest.held_out), file=sys.stderr)
    print(out)


@app.command()
def inspect(folder: Annotated[Path, _FOLDER], json: Annotated[bool, _JSON] = False) -> None:
    """Show what a draft was trained for, its sizes and how well it did."""
    from netgain.serving.training.inspect import inspect as look

    facts = look(folder)
    if json:
        print(dumps(msgspec.to_builtins(facts)))
    else:
        print("\n".join(_lines(facts)))


@app.command()
def evaluate(
    target: Annotated[str, _TARGET],
    folder: Annotated[Path, _FOLDER],
    prompts: Annotated[
        Path | None,
        typer.Option(help="Prompts that it was not trained on; by default the bundled workload chat.", metavar="FILE"),
    ] = None,
    k: Annotated[int | None, typer.Option(min=1, max=64, help="Drafts per step; by default as trained.")] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer, at most.")] = 128,
    threads: Annotated[int | None, _THREADS] = None,
    json: Annotated[bool, _JSON] = False,
) -> None:
    """Measure acceptance per position in the real engine, greedy and at temperature 0.7, beside n-gram and suffix."""
    from netgain.serving.training.evaluate import evaluate as measure
    from netgain.serving.training.prompts import read_prompts

    asked = chat_prompts() if prompts is None else read_prompts(prompts)
    found = measure(
        target,
        folder,
        asked,
        k=k,
        max_tokens=max_tokens,
        threads=threads,
        tell=lambda stage, share: print(f"{stage} ({share:.0%})", file=sys.stderr, flush=True),
    )
    if json:
        print(dumps(msgspec.to_builtins(found)))
    else:
        print("\n".join(_table(found)))


def chat_prompts() -> tuple[Prompt, ...]:
    """The bundled workload, none of whose prompts the bundled training set has."""
    from netgain.measuring.workload.load import load_workload
    from netgain.serving.training.prompts import Prompt

    return tuple(Prompt(messages=tuple(msgspec.to_builtins(item.messages))) for item in load_workload("chat").items)


def _acceptance_line(acceptance: tuple[float, ...] | None, held_out: int) -> str:
    if acceptance is None:
        return "acceptance: not measured, no held-out reply is long enough"
    shares = " / ".join(f"{share:.1%}" for share in acceptance)
    return f"acceptance by position, greedy, {held_out:,} held-out places: {shares}"


def _lines(facts: Facts) -> list[str]:
    manifest = facts.manifest
    taps = f", from layers {', '.join(map(str, manifest.taps))}" if manifest.kind != "layers" else ""
    recipe = ", ".join(f"{name} {value}" for name, value in manifest.recipe.items() if name != "prompts")
    return [
        f"{facts.folder}: {manifest.kind} draft{taps}, {manifest.positions} positions"
        + ("" if facts.finished else "; its training was stopped before the end"),
        f"for {manifest.target_name}, weights {manifest.target}, tokenizer {manifest.tokenizer[:32]}",
        f"{facts.parameters:,} parameters, {facts.file_bytes / 1e6:,.1f} MB on disk, can say "
        f"{facts.tokens_it_can_say:,} tokens",
        f"takes {facts.token_bytes:,} bytes of every token in the KV cache",
        _acceptance_line(manifest.acceptance, manifest.held_out),
        f"made {manifest.made_at}; data {manifest.data[:32]}; {recipe}",
    ]


def _table(found: Evaluation) -> list[str]:
    which = "held-out prompts of its own set" if found.held_out_only else "prompts"
    lines = [
        f"{found.draft} for {found.target}: {found.prompts} {which}, at most {found.max_tokens} tokens, {found.k} drafts "
        "per step, coupled",
        f"{'temperature':>11}  {'proposer':8}  {'committed/step':>14}  acceptance by position",
    ]
    for row in found.rows:
        committed = "-" if row.committed_per_step is None else f"{row.committed_per_step:.3f}"
        shares = " / ".join("-" if share is None else f"{share:.1%}" for share in row.acceptance) or "no drafts"
        lines.append(f"{row.temperature:>11g}  {row.proposer:8}  {committed:>14}  {shares}")
    return lines
