"""Request records as flat rows with one stable schema, and as JSON lines that survive a crash in the middle of a write."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from netgain.errors import UsageError
from netgain.ledger.lines import LineWriter
from netgain.ledger.records import BlendCounts, KVReuse, RequestRecord
from netgain.ledger.stage import Stage

SCHEMA_VERSION = 1

_PLAIN = (
    "request_id",
    "choice",
    "model",
    "received_s",
    "first_token_s",
    "finished_s",
    "finish_reason",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
    "own_s",
    "stall_s",
    "prompt_ids",
    "output_ids",
    "error",
    "tenant",
    "key_id",
)
_KV = KVReuse.__struct_fields__
_BLEND = BlendCounts.__struct_fields__
_MORE_OF_DRAFTS = ("ended", "unasked", "empty", "declined", "refused")


def to_row(record: RequestRecord) -> dict[str, Any]:
    """The record as a flat row (docs/ledger.md lists the columns): seconds per stage in `stage_NAME_s` and, up to the
    first token, `ttft_stage_NAME_s` (0 where the request did not wait for it, None without a first token)."""
    row: dict[str, Any] = {"schema": SCHEMA_VERSION}
    row.update((name, getattr(record, name)) for name in _PLAIN)
    for stage in Stage:
        row[f"stage_{stage.value}_s"] = record.stages.get(stage, 0.0)
    for stage in Stage:
        seconds = None if record.ttft_stages is None else record.ttft_stages.get(stage, 0.0)
        row[f"ttft_stage_{stage.value}_s"] = seconds
    row["draft_steps"] = record.drafts.steps
    row["draft_drafted"] = record.drafts.drafted
    row["draft_accepted"] = record.drafts.accepted
    row["draft_by_length"] = record.drafts.by_length
    for name in _MORE_OF_DRAFTS:
        row[f"draft_{name}"] = getattr(record.drafts, name)
    for name in _KV:
        row[f"kv_{name}"] = None if record.kv is None else getattr(record.kv, name)
    for name in _BLEND:
        row[f"blend_{name}"] = None if record.blending is None else getattr(record.blending, name)
    return row


def from_row(row: Mapping[str, Any]) -> RequestRecord:
    """The record of a row; columns of no known name are ignored. Raises UsageError for a newer schema, and
    msgspec.ValidationError for a row that lacks a column or has a value of another type."""
    version = row.get("schema")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UsageError(
            f"request records of schema {version}, but this netgain reads up to {SCHEMA_VERSION}: "
            "read them with the netgain that wrote them"
        )
    fields: dict[str, Any] = {name: row[name] for name in _PLAIN if name in row}
    fields["stages"] = _stages(row, "stage_")
    ttft = _stages(row, "ttft_stage_")
    fields["ttft_stages"] = None if all(seconds is None for seconds in ttft.values()) else ttft
    fields["drafts"] = {
        "steps": row.get("draft_steps"),
        "drafted": row.get("draft_drafted"),
        "accepted": row.get("draft_accepted"),
        "by_length": row.get("draft_by_length"),
        **{name: row[f"draft_{name}"] for name in _MORE_OF_DRAFTS if f"draft_{name}" in row},
    }
    if row.get("kv_why") is not None:
        fields["kv"] = {name: row[f"kv_{name}"] for name in _KV if f"kv_{name}" in row}
    if row.get("blend_selection") is not None:
        fields["blending"] = {name: row[f"blend_{name}"] for name in _BLEND if f"blend_{name}" in row}
    return msgspec.convert(fields, RequestRecord, strict=True, str_keys=True)


class JsonlWriter:
    """Appends request records to a file, one line each. For one writing process."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError when the file cannot be opened for appending."""
        self._lines = LineWriter(path, "request records")
        self._encoder = msgspec.json.Encoder()

    def write(self, record: RequestRecord) -> None:
        """Append one record. Raises OSError (a full disk); the next write then starts on a fresh line."""
        self._lines.write(self._encoder.encode(to_row(record)))

    def close(self) -> None:
        """May be called twice."""
        self._lines.close()


class JsonlContent(msgspec.Struct, frozen=True):
    """What a file of JSON lines held; `skipped` lines were torn or no request records."""

    records: tuple[RequestRecord, ...]
    skipped: int


def read_jsonl(path: Path) -> JsonlContent:
    """Read what JsonlWriter wrote. Raises UsageError when the file cannot be read or is of a newer schema."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"cannot read request records from {path}: {error.strerror}") from error
    decoder = msgspec.json.Decoder(dict[str, Any])
    records: list[RequestRecord] = []
    skipped = 0
    for line in lines:
        if not line:
            continue
        try:
            records.append(from_row(decoder.decode(line)))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            skipped += 1
    return JsonlContent(tuple(records), skipped)


def _stages(row: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The stages that occur, by name; all of them with None when the row knows none."""
    columns = {stage.value: row.get(f"{prefix}{stage.value}_s") for stage in Stage}
    return {name: seconds for name, seconds in columns.items() if seconds != 0.0}
