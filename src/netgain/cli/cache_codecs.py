"""`netgain cache codecs`: what each KV codec saves on a model, how quick it is, and what it loses."""

from __future__ import annotations

import sys
from json import dumps
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from netgain.cli.progress import progress_bar
from netgain.folders import cache_folder
from netgain.measuring.quality.paired_scores import tango_interval
from netgain.measuring.quality.texts import load_texts
from netgain.serving.tiers.codecs.names import NAMES
from netgain.serving.tiers.codecs.registry import check_name

if TYPE_CHECKING:
    from netgain.serving.runtime.codec_gate.kept import Report
    from netgain.serving.runtime.codec_gate.verdict import Row

WIDTH = 120  # of a table that is piped
MOST_TEXTS = 24


def codecs(
    model: Annotated[
        str, typer.Argument(help="'default', a .gguf file, a Hugging Face folder, or an id like org/name.")
    ] = "default",
    codec: Annotated[
        list[str] | None, typer.Option(help="Which to measure. Repeatable; by default all.", show_default=False)
    ] = None,
    dtype: Annotated[str, typer.Option(help="Weights as the server has them.")] = "auto",
    kv_dtype: Annotated[str, typer.Option(help="KV as the server has it: auto, bf16 or fp32.")] = "auto",
    activations: Annotated[str, typer.Option(help="What activations are rounded to, as in the server.")] = "auto",
    block_tokens: Annotated[int, typer.Option(min=2, help="Tokens of a block, as the server has it.")] = 16,
    texts: Annotated[
        str, typer.Option(help="'bundled', or a file of texts like those you serve (as netgain quality takes).")
    ] = "bundled",
    most_texts: Annotated[int, typer.Option(min=1, help="So many of them, the longest.")] = MOST_TEXTS,
    passages: Annotated[int, typer.Option(min=1, help="Passages of eight questions whose answers they hold.")] = 48,
    again: Annotated[bool, typer.Option("--again", help="Measure anew what was measured before.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
) -> None:
    """Measure on a model's own KV what each codec saves, how quick it is, and what continuing from decoded KV loses; keep the
    result for netgain serve."""
    names = tuple(dict.fromkeys(codec or NAMES))
    for name in names:
        check_name(name)
    pieces = gate_texts(texts, most_texts)
    from netgain.serving.runtime.codec_gate.run import measured  # torch

    with progress_bar() as progress:
        task = progress.add_task("loading the model", total=1.0)
        report = measured(
            model,
            names,
            pieces,
            cache_folder(),
            lambda what, done: progress.update(task, description=what, completed=done),
            dtype=dtype,
            kv_dtype=kv_dtype,
            activations=activations,
            block_tokens=block_tokens,
            again=again,
            interval=tango_interval,
            passages=passages,
        )
    if json:
        print(dumps(msgspec.to_builtins(report)))
    else:
        _show(report)


def gate_texts(source: str, most: int = MOST_TEXTS) -> list[str]:
    """The longest."""
    pieces = [text.prompt for text in load_texts(source) if isinstance(text.prompt, str)]
    return sorted(pieces, key=len, reverse=True)[:most]


def _show(report: Report) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("codec", no_wrap=True)
    for name in ("ratio", "encode GB/s", "decode GB/s", "KL", "perplexity", "found"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("gate")
    for row in report.rows:
        table.add_row(*_cells(row))
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    subject = report.subject
    loss = next((row.loss for row in report.rows if row.loss), None)
    console.print(
        f"KV in {subject.kv_dtype}, blocks of {subject.block_tokens} tokens; {report.arithmetic}, {report.taken}"
    )
    if loss:
        console.print(
            f"continued from a decoded prefix, beside the model's own: {loss.positions:,} positions of {loss.texts} texts (KL in "
            f"nats);\nfound: of {loss.asked} answers in the prompt, {loss.found_raw} with the model's own KV"
        )
    console.print(table)
    for row in report.rows:
        if row.state not in ("pass", "token-identical"):
            console.print(f"{row.name}: {row.why}", markup=False)


def _cells(row: Row) -> tuple[str, ...]:
    loss = row.loss
    return (
        row.name,
        f"{row.ratio:.2f}",
        f"{row.encode_bytes_per_s / 1e9:.2f}",
        f"{row.decode_bytes_per_s / 1e9:.2f}",
        f"{loss.kl.value:.4f}" if loss else "0",
        f"{loss.perplexity_ratio.value - 1:+.2%}" if loss else "+0.00%",
        str(loss.found) if loss else "as raw",
        f"lossy, {row.state}" if row.lossy else row.state,
    )
