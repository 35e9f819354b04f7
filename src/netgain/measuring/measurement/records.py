"""Client records as a Parquet table, one row per request, for analysis elsewhere and for comparisons.

Times are seconds from the window's beginning, which measurement.json has in Unix time. Texts are left out unless asked for;
`text_sha256` tells whether two answers are the same.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from netgain.errors import UsageError
from netgain.ledger.records import RequestRecord
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.workload.item import Item

_TIMES = ("scheduled_s", "sent_s", "finished_s", "first_token_s", "first_text_s")
_PLAIN = (
    "item_id",
    "category",
    "turn",
    "tokens_source",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "finish_reason",
    "status",
    "error",
    "error_kind",
    "connect_s",
    "resent",
)
_OF_ROW = ("prompt_sha256", "max_tokens")

VERSION = 2  # of this table, written into its metadata; measurement.json has its own
SCHEMA = pa.schema(
    [
        pa.field("window", pa.int32(), nullable=False),
        pa.field("counted", pa.bool_(), nullable=False),
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("category", pa.string(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("prompt_sha256", pa.string()),
        pa.field("max_tokens", pa.int64()),
        pa.field("scheduled_s", pa.float64(), nullable=False),
        pa.field("sent_s", pa.float64(), nullable=False),
        pa.field("finished_s", pa.float64(), nullable=False),
        pa.field("first_token_s", pa.float64()),
        pa.field("first_text_s", pa.float64()),
        pa.field("chunk_times_s", pa.list_(pa.float64()), nullable=False),
        pa.field("chunk_tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("tokens_source", pa.string()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("finish_reason", pa.string()),
        pa.field("status", pa.int32()),
        pa.field("error", pa.string()),
        pa.field("error_kind", pa.string()),
        pa.field("connect_s", pa.float64()),
        pa.field("resent", pa.bool_(), nullable=False),
        pa.field("text_sha256", pa.string()),
        pa.field("text", pa.string()),
        pa.field("reasoning", pa.string()),
        pa.field("server", pa.string()),
    ],
    metadata={"netgain.schema": str(VERSION)},
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a measurement. `window`: which one of a saturation search, else 0. `counted`: False for warming up.

    `prompt_sha256`: of what it asked (Item.prompt_digest).
    """

    window: int
    counted: bool
    record: ClientRecord
    prompt_sha256: str | None = None
    max_tokens: int | None = None


def rows_of(
    window: int,
    began_s: float,
    warm_up: Sequence[ClientRecord],
    counted: Sequence[ClientRecord],
    items: Sequence[Item] = (),
) -> list[Row]:
    """The records of one run, with times from `began_s` on. `items`: what was sent, where it is known."""
    sent = {item.id: (item.prompt_digest, item.max_tokens) for item in items}
    unknown = (None, None)
    return [
        Row(
            window=window,
            counted=counts,
            record=_shifted(record, began_s),
            prompt_sha256=sent.get(record.item_id, unknown)[0],
            max_tokens=sent.get(record.item_id, unknown)[1],
        )
        for counts, records in ((False, warm_up), (True, counted))
        for record in records
    ]


def write_records(rows: Sequence[Row], path: Path, with_text: bool = False) -> None:
    """Write the whole table, replacing the file at once. Raises UsageError when it cannot be written."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist([_to_row(row, with_text) for row in rows], schema=SCHEMA)
        pq.write_table(table, part, compression="zstd")
        part.replace(path)
    except (OSError, OverflowError, UnicodeError, pa.ArrowException) as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"cannot write the records to {path}: {error}; name another folder with --output") from error


def read_records(path: Path) -> tuple[Row, ...]:
    """Read what write_records wrote. Raises UsageError when the file is none of it, or of another version."""
    try:
        table = pq.read_table(path)
        version = (table.schema.metadata or {}).get(b"netgain.schema", b"1").decode()
        if version != str(VERSION):
            raise UsageError(f"{path} has schema {version}, but this netgain reads {VERSION}; measure again")
        return tuple(_from_row(row) for row in table.to_pylist())
    except (OSError, pa.ArrowException, msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} holds no records of netgain measure that can be read: {error}") from error


def _shifted(record: ClientRecord, began_s: float) -> ClientRecord:
    moved = {name: None if (at := getattr(record, name)) is None else at - began_s for name in _TIMES}
    return msgspec.structs.replace(record, chunk_times_s=tuple(at - began_s for at in record.chunk_times_s), **moved)


def _to_row(row: Row, with_text: bool) -> dict[str, Any]:
    record = row.record
    found: dict[str, Any] = {"window": row.window, "counted": row.counted}
    found.update((name, getattr(record, name)) for name in (*_TIMES, *_PLAIN))
    found["chunk_times_s"] = list(record.chunk_times_s)
    found["chunk_tokens"] = list(record.chunk_tokens)
    found["text_sha256"] = _digest(record.text + record.reasoning) or record.text_sha256
    found.update((name, getattr(row, name)) for name in _OF_ROW)
    found["text"] = record.text if with_text else None
    found["reasoning"] = record.reasoning if with_text else None
    found["server"] = None if record.server is None else msgspec.json.encode(record.server).decode()
    return found


def _digest(said: str) -> str | None:
    return hashlib.sha256(said.encode("utf-8", "replace")).hexdigest() if said else None


def _from_row(row: dict[str, Any]) -> Row:
    fields = {name: row[name] for name in (*_TIMES, *_PLAIN, "chunk_times_s", "chunk_tokens")}
    fields["text"], fields["reasoning"] = row["text"] or "", row["reasoning"] or ""
    fields["text_sha256"] = None if row["text"] or row["reasoning"] else row["text_sha256"]
    fields["server"] = None if row["server"] is None else msgspec.json.decode(row["server"], type=RequestRecord)
    record = msgspec.convert(fields, ClientRecord, strict=True)
    return Row(window=row["window"], counted=row["counted"], record=record, **{name: row[name] for name in _OF_ROW})
