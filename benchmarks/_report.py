"""One form for every benchmark's result: a table to read and a flat JSON object of figures, with where they were measured."""

import argparse
import importlib.metadata
import json
import math
import platform
import subprocess
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from netgain.cost.machine import usable_cores

Figure = float | int | bool | str | None
"""None is unknown. Yes and no are 1 and 0 in the file, so that every figure can be compared with a number."""

# What decides which kernel runs, of the many flags that a CPU lists.
_ISA = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The command line that every benchmark has: `python -m benchmarks.NAME [--json FILE]`; a benchmark may add its own."""
    first_line = (description or "").strip().partition("\n")[0]
    parser = argparse.ArgumentParser(description=first_line)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, as one flat JSON object")
    return parser


def write(
    json_path: Path | None,
    figures: Mapping[str, Figure],
    context: Mapping[str, object] | None = None,
    title: str = "",
    *,
    shown: Collection[str] | None = None,
) -> None:
    """Print `figures` (or those that are `shown`) as a table and, with a path, write them all as one flat JSON object; what is
    not finite becomes null.

    `_context` in the file is machine, versions and commit, and `context` (settings of this run) on top. Raises TypeError
    for a figure that is no number, text or None.
    """
    flat, where = save(json_path, figures, context)
    table = Table(title=title or None, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in flat.items() if shown is None else ((name, flat[name]) for name in shown):
        table.add_row(name, _readable(value))
    console = Console()
    console.print(table)
    console.print(
        f"{where['cpu']}, {where['cores']} cores, {where['ram_gib']} GiB; torch {where['torch']}; commit {where['commit']}",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )


def save(
    json_path: Path | None, figures: Mapping[str, Figure], context: Mapping[str, object] | None = None
) -> tuple[dict[str, Figure], dict[str, object]]:
    """Write the file as `write` does, if there is a path, and print nothing. What is in it: figures, and `_context`."""
    flat = {name: _flat(name, value) for name, value in figures.items()}
    where = {**machine(), **(context or {})}
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        part = json_path.with_name(json_path.name + ".part")
        part.write_text(json.dumps({**flat, "_context": where}, indent=2, allow_nan=False, default=str) + "\n")
        part.replace(json_path)
    return flat, where


def machine() -> dict[str, object]:
    """When and where this runs: machine, versions and commit, None where unknown."""
    model, flags = _cpu()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": model,
        "cores": usable_cores(),
        "ram_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "isa": [flag for flag in _ISA if flag in flags],
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "netgain": _version("netgain"),
        "commit": commit(),
    }


def _flat(name: str, value: Figure) -> Figure:
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    raise TypeError(f"figure {name} is {value!r}: give a number, text or None (convert NumPy and torch scalars first)")


def _readable(value: Figure) -> str:
    if value is None:
        return "unknown"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _cpu() -> tuple[str | None, set[str]]:
    """Model name and flags, from Linux; elsewhere what Python knows."""
    model: str | None = platform.processor() or platform.machine() or None
    flags: set[str] = set()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return model, flags
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = set(value.split())
    return model, flags


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of this tree, with "+changes" when files differ from it; None outside a repository."""
    root = Path(__file__).resolve().parent.parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
