"""Request records as a Parquet table with the same columns as the JSON lines, for analysis elsewhere."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from netgain.errors import UsageError
from netgain.ledger.export import from_row, to_row
from netgain.ledger.records import BlendCounts, KVReuse, RequestRecord
from netgain.ledger.stage import Stage

_TYPES = {
    str: pa.string(),
    str | None: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    float | None: pa.float64(),
    bool: pa.bool_(),
}


def schema() -> pa.Schema:
    """The columns of a request record: name, Arrow type, and whether null (unknown or not applicable) may occur."""
    counts = pa.list_(pa.int64())
    return pa.schema(
        [
            pa.field("schema", pa.int32(), nullable=False),
            pa.field("request_id", pa.string(), nullable=False),
            pa.field("choice", pa.int32(), nullable=False),
            pa.field("model", pa.string(), nullable=False),
            pa.field("received_s", pa.float64(), nullable=False),
            pa.field("first_token_s", pa.float64()),
            pa.field("finished_s", pa.float64(), nullable=False),
            pa.field("finish_reason", pa.string(), nullable=False),
            pa.field("prompt_tokens", pa.int64(), nullable=False),
            pa.field("cached_tokens", pa.int64()),
            pa.field("output_tokens", pa.int64(), nullable=False),
            pa.field("preemptions", pa.int64()),
            pa.field("own_s", pa.float64()),
            pa.field("stall_s", pa.float64()),
            pa.field("prompt_ids", pa.list_(pa.int32())),
            pa.field("output_ids", pa.list_(pa.int32())),
            pa.field("error", pa.string()),
            pa.field("tenant", pa.string()),
            pa.field("key_id", pa.string()),
            *(pa.field(f"stage_{stage.value}_s", pa.float64(), nullable=False) for stage in Stage),
            *(pa.field(f"ttft_stage_{stage.value}_s", pa.float64()) for stage in Stage),
            pa.field("draft_steps", pa.int64(), nullable=False),
            pa.field("draft_drafted", counts, nullable=False),
            pa.field("draft_accepted", counts, nullable=False),
            pa.field("draft_by_length", pa.map_(pa.int32(), counts), nullable=False),
            *(
                pa.field(f"draft_{name}", pa.int64(), nullable=False)
                for name in ("ended", "unasked", "empty", "declined", "refused")
            ),
            *(pa.field(f"kv_{field.name}", _TYPES[field.type]) for field in msgspec.structs.fields(KVReuse)),
            *(pa.field(f"blend_{field.name}", _TYPES[field.type]) for field in msgspec.structs.fields(BlendCounts)),
        ]
    )


def write_parquet(records: Iterable[RequestRecord], path: Path) -> None:
    """Write the whole table, replacing the file at once. Raises UsageError when it cannot be written."""
    rows = []
    for record in records:
        row = to_row(record)
        row["draft_by_length"] = list(record.drafts.by_length.items())
        rows.append(row)
    part = path.with_name(path.name + ".part")
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema()), part, compression="zstd")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"cannot write request records to {path}: {error}. Name another file") from error


def read_parquet(path: Path) -> tuple[RequestRecord, ...]:
    """Read what write_parquet wrote. Raises UsageError when the file is none of it, or of a newer schema."""
    try:
        rows = pq.read_table(path).to_pylist()
        for row in rows:
            row["draft_by_length"] = dict(row.get("draft_by_length") or ())
        return tuple(from_row(row) for row in rows)
    except (OSError, pa.ArrowException, msgspec.ValidationError) as error:
        raise UsageError(f"{path} holds no request records that can be read: {error}") from error
