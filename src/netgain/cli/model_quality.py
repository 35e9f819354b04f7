"""What `netgain model inspect --quality` measures, keeps and shows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from netgain.cli.progress import progress_bar
from netgain.cost import kept
from netgain.cost.machine import usable_cores
from netgain.errors import UsageError
from netgain.folders import cache_folder
from netgain.serving.model.checkpoint import Checkpoint
from netgain.serving.model.digest import files_digest
from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.weights import WeightSource
from netgain.serving.runtime.quality import (
    Form,
    Measured,
    Quality,
    Refused,
    bundled_text,
    firsts,
    form_of,
    kept_file,
    measure,
    nothing_measured,
    same_way,
)

WIDTH = 116  # of a table that is piped


def kept_quality(weights: WeightSource) -> Measured | None:
    """What was measured before."""
    try:
        return kept.read(kept_file(cache_folder(), files_digest(weights.files)), Measured)
    except UsageError:  # no cache folder
        return None


def measured_quality(checkpoint: Checkpoint, weights: WeightSource, wanted: Sequence[Form]) -> Measured:
    """The wanted forms, measured now or, in the same way, before; a bar on stderr shows how far it is."""
    threads = usable_cores()
    kernels, text = load_kernels("auto", threads), bundled_text()
    torch.set_num_threads(1 if isinstance(kernels, CompiledKernels) else threads)  # two pools would fight for the cores
    place = kept_file(cache_folder(), files_digest(weights.files))
    measured = nothing_measured(kernels, text, datetime.now(UTC).isoformat(timespec="seconds"))
    before = kept.read(place, Measured)
    if before and same_way(before, measured):
        measured = before
    missing = [form for form in wanted if measured.row(form) is None]
    with progress_bar() as progress:
        task = progress.add_task("float32", total=1.0)
        rows = measure(
            checkpoint.path,
            missing,
            firsts(weights, checkpoint.config, wanted),
            kernels,
            text,
            lambda what, done: progress.update(task, description=what, completed=done),
        )
        for row in rows if missing else ():
            measured = msgspec.structs.replace(measured, rows=(*measured.rows, row))
            kept.write(place, measured)
    return msgspec.structs.replace(measured, rows=tuple(row for form in wanted if (row := measured.row(form))))


def show(measured: Measured) -> None:
    """As a table on stdout."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("weights", "activations", "KV", "kept as"):
        table.add_column(name, no_wrap=True)
    for name in ("MB", "KV B/token", "perplexity", "KL", "KL p99", "same greedy"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in measured.rows:
        table.add_row(*_cells(row))
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    console.print(f"\nquality beside float32 ({measured.kernels}, {measured.taken}){_read(measured)}")
    console.print(table)
    for row in measured.rows:
        if isinstance(row, Refused):
            console.print(f"{form_of(row)}: {row.why}", markup=False)
        elif row.same_as:
            console.print(f"{form_of(row)}: comes out as {row.same_as}, so its figures are those", markup=False)


def _read(measured: Measured) -> str:
    """What the figures of the table are of."""
    for row in measured.rows:
        if isinstance(row, Quality):
            return (
                f": {row.tokens:,} tokens of the bundled text,\n"
                f"perplexity {row.perplexity_fp32:.3f} in float32; KL in nats per token, its mean and 99th percentile"
            )
    return ""


def _cells(row: Quality | Refused) -> tuple[str, ...]:
    if isinstance(row, Refused):
        return (row.dtype, row.activations, row.kv_dtype, "refused, see below")
    return (
        row.dtype,
        "+".join(row.multiplied_with),
        row.kv_dtype,
        "see below" if row.same_as else "+".join(sorted({kind.partition(" ")[0] for kind in row.computed})),
        f"{row.weight_bytes / 1e6:,.1f}",
        f"{row.kv_bytes_per_token:,}",
        f"{row.perplexity:.3f}",
        f"{row.kl_mean:.2g}",
        f"{row.kl_p99:.2g}",
        f"{row.same_top:.2%}",
    )
