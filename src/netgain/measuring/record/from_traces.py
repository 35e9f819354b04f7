"""Public traces of production traffic: Mooncake (with prefix hashes), Azure and BurstGPT (lengths only)."""

import csv
import math
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from netgain.measuring.record.entry import Count, Entry
from netgain.measuring.record.hashing import Hasher
from netgain.measuring.record.source import Skipped, SourceFile


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: Count
    output_length: Count
    hash_ids: list[int]


def read_mooncake(source: SourceFile, hasher: Hasher) -> Iterator[Entry | Skipped]:
    """JSON lines: `timestamp` in ms, lengths in tokens, `hash_ids` of blocks of 512 tokens, the last one possibly partial."""
    for number, line in enumerate(source.lines()):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=_MooncakeRow)
        except (msgspec.MsgspecError, RecursionError):
            yield Skipped("no row of a Mooncake trace")
            continue
        yield Entry(
            id=f"mooncake-{number}",
            arrived_unix_s=row.timestamp / 1e3,
            prompts=1,
            prompt_tokens=row.input_length,
            output_tokens=row.output_length,
            tokens_source="the trace",
            prompt_size=row.input_length,
            blocks=tuple(row.hash_ids),
        )


def read_azure(source: SourceFile, hasher: Hasher) -> Iterator[Entry | Skipped]:
    """CSV with TIMESTAMP, ContextTokens, GeneratedTokens."""
    for number, row in _rows(source, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=UTC)
            yield _lengths(f"azure-{number}", at.timestamp(), row["ContextTokens"], row["GeneratedTokens"])
        except (ValueError, TypeError):
            yield Skipped("a row with a value that is no number or time")


def read_burstgpt(source: SourceFile, hasher: Hasher) -> Iterator[Entry | Skipped]:
    """CSV with Timestamp (seconds), Model, Request tokens, Response tokens."""
    for number, row in _rows(source, ("Timestamp", "Request tokens", "Response tokens")):
        try:
            entry = _lengths(
                f"burstgpt-{number}", float(row["Timestamp"]), row["Request tokens"], row["Response tokens"]
            )
        except (ValueError, TypeError):
            yield Skipped("a row with a value that is no number or time")
            continue
        failed = "no tokens came back" if entry.output_tokens == 0 else None
        yield msgspec.structs.replace(entry, model=row.get("Model"), error=failed)


def _lengths(name: str, at_s: float, prompt: str, output: str) -> Entry:
    """Raises ValueError."""
    counts = int(prompt), int(output)
    if min(counts) < 0 or not math.isfinite(at_s):
        raise ValueError(f"a length or time that cannot be: {counts}, {at_s}")
    return Entry(
        id=name,
        arrived_unix_s=at_s,
        prompts=1,
        prompt_tokens=counts[0],
        output_tokens=counts[1],
        tokens_source="the trace",
    )


def _rows(source: SourceFile, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file that has `columns`; none otherwise."""
    rows = csv.DictReader(source.lines())
    try:
        if not set(columns) <= set(rows.fieldnames or ()):
            return
        yield from enumerate(rows)
    except csv.Error:
        return
