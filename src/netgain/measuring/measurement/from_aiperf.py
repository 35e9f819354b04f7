"""Records of aiperf 0.13 (`profile_export.jsonl`), one line per request; its phases for warming up do not count.

Of each request it keeps the time to the first token and the gaps between chunks.
"""

from typing import Any

import msgspec

from netgain.errors import UsageError
from netgain.measuring.client.record import ClientRecord, ErrorKind
from netgain.measuring.measurement.imported import Imported, spread_tokens
from netgain.measuring.measurement.result import Load, Prompts, Server, Source

_TO_S = {"ms": 1e-3, "sec": 1.0, "s": 1.0, "us": 1e-6, "ns": 1e-9}


class _Metadata(msgspec.Struct):
    request_start_ns: int
    request_end_ns: int
    session_num: int = 0
    credit_issued_ns: int | None = None
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False


class _Metric(msgspec.Struct):
    value: Any
    unit: str | None = None


class _Error(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    code: int | None = None


class Line(msgspec.Struct):
    """The fields that are read. Nanoseconds are Unix time."""

    metadata: _Metadata
    metrics: dict[str, _Metric] = {}
    error: _Error | None = None


def read_aiperf(data: bytes, name: str) -> Imported:
    """Raises UsageError and msgspec.ValidationError."""
    if b'"request_start_ns"' not in data:
        raise UsageError(
            f"{name} does not hold aiperf's requests; give profile_export.jsonl of the same folder, which does"
        )
    lines = [msgspec.json.decode(line, type=Line) for line in data.split(b"\n") if line.strip()]
    counted = [
        line for line in lines if line.metadata.benchmark_phase == "profiling" and not line.metadata.was_cancelled
    ]
    first_ns = min((line.metadata.request_start_ns for line in counted), default=0)
    caveats = [
        "aiperf keeps gaps between chunks, not tokens per chunk: the tokens of an answer are spread evenly over its chunks."
    ]
    cancelled = sum(line.metadata.was_cancelled for line in lines)
    if cancelled:
        caveats.append(f"{cancelled} requests were cancelled by aiperf and are left out.")
    if any("inter_chunk_latency" not in line.metrics for line in counted if line.error is None):
        caveats.append("Some requests have no gaps between chunks: their ITL is the request's mean.")
    return Imported(
        source=Source(tool="aiperf", file=name),
        server=Server(url=None, model=None),
        load=Load(kind="unknown", text="arrivals that the records do not name"),
        prompts=Prompts(name=None),
        records=tuple(_record(place, line, first_ns) for place, line in enumerate(counted)),
        unix_s=first_ns / 1e9,
        caveats=tuple(caveats),
    )


def _record(place: int, line: Line, first_ns: int) -> ClientRecord:
    at = line.metadata
    sent_s = (at.request_start_ns - first_ns) / 1e9
    end_s = (at.request_end_ns - first_ns) / 1e9
    due_s = sent_s if at.credit_issued_ns is None else min(sent_s, (at.credit_issued_ns - first_ns) / 1e9)
    ttft_s = _seconds(line.metrics.get("time_to_first_token"))
    tokens = _count(line.metrics, "usage_completion_tokens", "output_sequence_length")
    times: list[float] = []
    if ttft_s is not None:
        times.append(sent_s + ttft_s)
        for gap_s in _gaps_s(line.metrics, end_s - times[0], tokens):
            times.append(times[-1] + gap_s)
    return ClientRecord(
        item_id=f"{place:06d}",
        category="imported",
        scheduled_s=due_s,
        sent_s=sent_s,
        finished_s=end_s,
        first_token_s=times[0] if times else None,
        chunk_times_s=tuple(times),
        chunk_tokens=spread_tokens(len(times), tokens),
        tokens_source=None if tokens is None else "total",
        prompt_tokens=_count(line.metrics, "usage_prompt_tokens", "input_sequence_length"),
        output_tokens=tokens,
        status=None if line.error is None else line.error.code,
        error=None if line.error is None else (line.error.message or line.error.type or "failed")[:300],
        error_kind=None if line.error is None else ErrorKind.SERVER,
    )


def _gaps_s(metrics: dict[str, _Metric], rest_s: float, tokens: int | None) -> list[float]:
    found = metrics.get("inter_chunk_latency")
    if found is not None and isinstance(found.value, list):
        scale = _TO_S.get(found.unit or "ms", 1e-3)
        return [float(value) * scale for value in found.value]
    return [rest_s] if tokens is not None and tokens > 1 and rest_s > 0.0 else []


def _seconds(metric: _Metric | None) -> float | None:
    if metric is None or not isinstance(metric.value, int | float):
        return None
    return float(metric.value) * _TO_S.get(metric.unit or "ms", 1e-3)


def _count(metrics: dict[str, _Metric], *names: str) -> int | None:
    """The first of `names` that is there: the server's own count before the tool's tokeniser."""
    for name in names:
        found = metrics.get(name)
        if found is not None and isinstance(found.value, int | float):
            return int(found.value)
    return None
