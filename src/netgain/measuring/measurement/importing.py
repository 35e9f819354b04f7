"""Results of other tools in netgain's form, so that they can be read, judged by an SLO and compared like its own."""

import importlib.metadata
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from netgain.errors import UsageError
from netgain.heading import heading_of
from netgain.measuring.client.chunk import MOST_TOKENS
from netgain.measuring.client.percentiles import Percentiles
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.client.summary import summarise
from netgain.measuring.measurement.cost import Pricing, cost_of
from netgain.measuring.measurement.from_aiperf import read_aiperf
from netgain.measuring.measurement.from_guidellm import read_guidellm
from netgain.measuring.measurement.from_inference_perf import read_inference_perf
from netgain.measuring.measurement.from_vllm_bench import read_vllm_bench
from netgain.measuring.measurement.imported import Imported, past_run
from netgain.measuring.measurement.records import rows_of, write_records
from netgain.measuring.measurement.result import RECORDS_FILE, Measurement, Tool, write_measurement
from netgain.measuring.workload.slo import SLO
from netgain.plain_file import as_text, read_plain

TOOLS: Mapping[str, Tool] = {
    "vllm-bench": "vllm bench serve",
    "guidellm": "guidellm",
    "aiperf": "aiperf",
    "inference-perf": "inference-perf",
}
_READERS: Mapping[Tool, Callable[[bytes, str], Imported]] = {
    "vllm bench serve": read_vllm_bench,
    "guidellm": read_guidellm,
    "aiperf": read_aiperf,
    "inference-perf": read_inference_perf,
}
_FILES = (
    "profile_export.jsonl",
    "per_request_lifecycle_metrics.json",
    "benchmarks.json",
)  # what a folder is looked through for
_MOST_S = 1e7  # from sending to the end; more is a damaged file


def import_result(
    path: Path, tool: Tool | None, folder: Path, slo: SLO | None = None, pricing: Pricing | None = None
) -> Measurement:
    """Write `measurement.json`, and `records.parquet` where the tool kept requests, into `folder`. Raises UsageError."""
    measurement, imported = read_result(path, tool, slo)
    if pricing is not None:
        measurement = msgspec.structs.replace(measurement, cost=cost_of(measurement, pricing))
    if imported.records:
        past = past_run(imported.records)
        write_records(rows_of(0, past.started_s, (), past.records), folder / RECORDS_FILE)
    write_measurement(measurement, folder)
    return measurement


def read_result(path: Path, tool: Tool | None = None, slo: SLO | None = None) -> tuple[Measurement, Imported]:
    """`tool`: whose result it is, None to find out. Raises UsageError that names the file and what is wrong with it."""
    file = _file_of(path)
    try:
        data = read_plain(file)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    data = _without_nan(data)
    tool = tool or _tool_of(data, file)
    try:
        imported = _READERS[tool](data, as_text(file.name))
    except (msgspec.MsgspecError, ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read as a result of {tool}: {error}") from error
    for record in imported.records:
        if (odd := impossible(record)) is not None:
            raise UsageError(f"{file} cannot be read as a result of {tool}: it tells of a request {odd}")
    return _measurement(imported, slo), imported


def _without_nan(data: bytes) -> bytes:
    """Python's tools write NaN and Infinity, which are no JSON: such numbers are unknown. A file without them is as it was."""
    if b"NaN" not in data and b"Infinity" not in data:
        return data
    try:
        return msgspec.json.encode(json.loads(data, parse_constant=lambda _: None))
    except (ValueError, RecursionError, OverflowError):
        lines = data.split(b"\n")
        return b"\n".join(map(_line_without_nan, lines)) if len(lines) > 1 else data


def _line_without_nan(line: bytes) -> bytes:
    try:
        return msgspec.json.encode(json.loads(line, parse_constant=lambda _: None)) if line.strip() else line
    except (ValueError, RecursionError, OverflowError):
        return line  # whoever reads it says what is wrong with it


def impossible(record: ClientRecord) -> str | None:
    """What only a damaged file tells of a request."""
    for told in (record.prompt_tokens, record.output_tokens):
        if told is not None and not 0 <= told <= MOST_TOKENS:
            return f"with {told} tokens"
    for time_s in (record.first_token_s, *record.chunk_times_s, record.finished_s):
        if time_s is not None and not 0.0 <= time_s - record.scheduled_s <= _MOST_S:
            return f"that something came to {time_s - record.scheduled_s:g} s after it was sent"
    return None


def _measurement(imported: Imported, slo: SLO | None) -> Measurement:
    caveats = list(imported.caveats)
    began_unix_s = imported.unix_s
    if imported.summary is not None:
        summary = imported.summary
        if slo is not None:
            caveats.append(f"The SLO {slo} cannot be judged without the requests.")
    else:
        if not imported.records:
            raise UsageError(f"{imported.source.file} holds no finished request")
        past = past_run(imported.records)
        summary = summarise(past, slo)
        if all(record.sent_s == record.scheduled_s for record in past.records):
            nothing = Percentiles(count=0, failed=0, mean=None, p50=None, p95=None, p99=None)
            summary = msgspec.structs.replace(summary, lateness=nothing)  # nobody knows when requests were due
        began_unix_s = None if imported.unix_s is None else imported.unix_s + past.started_s
        if summary.little is not None and not math.isfinite(summary.little.deviation):
            summary = msgspec.structs.replace(summary, little=None)
    if summary.failed:
        caveats.insert(0, f"{summary.failed} of {summary.requests} requests failed.")
    return Measurement(
        netgain=importlib.metadata.version("netgain"),
        source=imported.source,
        began_unix_s=began_unix_s,
        server=imported.server,
        prompts=imported.prompts,
        load=imported.load,
        summary=summary,
        caveats=tuple(caveats),
        records=RECORDS_FILE if imported.records else None,
    )


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = next((path / name for name in _FILES if (path / name).is_file()), None)
    if found is None:
        raise UsageError(f"the folder {path} has none of {', '.join(_FILES)}; name the file with the results")
    return found


class _Marks(msgspec.Struct):
    """Fields that only one tool's results have."""

    aiperf_version: Any = None
    benchmarks: Any = None
    metadata: Any = None
    backend: Any = None
    completed: Any = None
    metrics: Any = None
    start_time: Any = None
    info: Any = None


def _tool_of(data: bytes, file: Path) -> Tool:
    if (heading := heading_of(data)).known:
        raise UsageError(f"{file} is a {heading.schema} already, which needs no import")
    start = data.lstrip()
    lines = start.split(b"\n", 1)
    for text in (start, lines[0]):
        try:
            found = msgspec.json.decode(text, type=_Marks | list[_Marks])
        except (msgspec.MsgspecError, RecursionError):
            continue
        first = (found[0] if found else _Marks()) if isinstance(found, list) else found
        if first.benchmarks is not None and first.metadata is not None:
            return "guidellm"
        if first.completed is not None and first.backend is not None:
            return "vllm bench serve"
        if first.aiperf_version is not None or (first.metadata is not None and first.metrics is not None):
            return "aiperf"
        if first.info is not None and first.start_time is not None:
            return "inference-perf"
    raise UsageError(f"{file} is no result of {', '.join(TOOLS)} that is known; say whose it is with --from")
