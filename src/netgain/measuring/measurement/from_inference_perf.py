"""Per-request reports of inference-perf 0.7 (`report.request_lifecycle.per_request: true`), which hold each chunk and its time.

Tokens are counted again from those chunks: the tool itself tokenises the text, which is wrong where that text is not what the
model's tokens spell.
"""

from typing import Any

import msgspec

from netgain.errors import UsageError
from netgain.measuring.client.chunk import read_chunk
from netgain.measuring.client.record import ClientRecord, ErrorKind
from netgain.measuring.client.sse import StreamError
from netgain.measuring.client.tokens import Arrival, count_tokens
from netgain.measuring.measurement.imported import Imported
from netgain.measuring.measurement.result import Load, Prompts, Server, Source


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Response(msgspec.Struct):
    output_tokens: int | None = None
    server_usage: _Usage | None = None
    response_chunks: list[str] = []
    chunk_times: list[float] = []


class _Text(msgspec.Struct):
    input_tokens: int | None = None


class _Asked(msgspec.Struct):
    text: _Text | None = None


class _Info(msgspec.Struct):
    request_metrics: _Asked | None = None
    response_metrics: _Response | None = None


class Row(msgspec.Struct):
    """The fields that are read; times are of the tool's monotonic clock."""

    start_time: float
    end_time: float
    info: _Info
    request: str | None = None
    error: Any = None


def read_inference_perf(data: bytes, name: str) -> Imported:
    """Raises UsageError and msgspec.ValidationError."""
    rows = msgspec.json.decode(data, type=list[Row])
    if not rows:
        raise UsageError(f"{name} holds no requests")
    return Imported(
        source=Source(tool="inference-perf", file=name),
        server=Server(url=None, model=_model(rows[0])),
        load=Load(kind="unknown", text="arrivals that the report does not name"),
        prompts=Prompts(name=None),
        records=tuple(_record(place, row) for place, row in enumerate(rows)),
        caveats=(
            "Latency counts from sending: the report does not say when each request was due.",
            "When it was measured is not known: the report has the tool's monotonic clock only.",
        ),
    )


def _record(place: int, row: Row) -> ClientRecord:
    response = row.info.response_metrics or _Response()
    arrivals: list[Arrival] = []
    usage = response.server_usage
    for text, at_s in zip(response.response_chunks, response.chunk_times, strict=False):
        try:
            chunk = read_chunk(text.encode())
        except StreamError:
            continue
        if chunk.choices:
            said, aside, _ = chunk.said()
            running = None if chunk.usage is None else chunk.usage.completion_tokens
            arrivals.append(Arrival(at_s, len(said) + len(aside), len(said), running))
    count = count_tokens(arrivals, None if usage is None else usage.completion_tokens, response.output_tokens)
    asked = row.info.request_metrics
    prompt = usage.prompt_tokens if usage is not None else None
    if prompt is None and asked is not None and asked.text is not None:
        prompt = asked.text.input_tokens
    return ClientRecord(
        item_id=f"{place:06d}",
        category="imported",
        scheduled_s=row.start_time,
        sent_s=row.start_time,
        finished_s=row.end_time,
        first_token_s=count.times_s[0] if count.times_s else None,
        first_text_s=count.first_text_s,
        chunk_times_s=count.times_s,
        chunk_tokens=count.tokens,
        tokens_source=count.source,
        prompt_tokens=prompt,
        output_tokens=count.total,
        error=None if row.error is None else _reason(row.error),
        error_kind=None if row.error is None else ErrorKind.SERVER,
    )


def _reason(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("error_msg") or error.get("error_type") or error)[:300]
    return str(error)[:300]


def _model(row: Row) -> str | None:
    try:
        asked = msgspec.json.decode(row.request or "null")
    except (msgspec.DecodeError, RecursionError):
        return None
    return asked.get("model") if isinstance(asked, dict) else None
