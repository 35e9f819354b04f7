"""Reports of guidellm (JSON, version 0.8 of the tool and of its report format 2): one benchmark, with its requests.

Of each request it keeps the times of the first and the last token, not of those between.
"""

import msgspec

from netgain.errors import UsageError
from netgain.measuring.client.record import ClientRecord, ErrorKind
from netgain.measuring.measurement.imported import Imported
from netgain.measuring.measurement.result import Load, Prompts, Server, Source


class _Metadata(msgspec.Struct):
    guidellm_version: str


class _Timings(msgspec.Struct):
    targeted_start: float | None = None
    scheduled_at: float | None = None
    request_start: float | None = None
    request_end: float | None = None
    resolve_end: float | None = None
    first_token_iteration: float | None = None
    last_token_iteration: float | None = None


class _Info(msgspec.Struct):
    timings: _Timings
    error: str | None = None


class _Request(msgspec.Struct):
    request_id: str
    info: _Info
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class _Requests(msgspec.Struct):
    successful: list[_Request] = []
    errored: list[_Request] = []
    incomplete: list[_Request] = []


class _Strategy(msgspec.Struct):
    type_: str
    rate: float | None = None
    streams: int | None = None
    max_concurrency: int | None = None


class _Backend(msgspec.Struct):
    target: str | None = None
    model: str | None = None


class _Config(msgspec.Struct):
    strategy: _Strategy
    backend: _Backend = msgspec.field(default_factory=_Backend)


class _Made(msgspec.Struct):
    successful: int = 0
    errored: int = 0


class _Metrics(msgspec.Struct):
    requests_made: _Made = msgspec.field(default_factory=_Made)


class _Benchmark(msgspec.Struct):
    config: _Config
    requests: _Requests
    scheduler_metrics: _Metrics = msgspec.field(default_factory=_Metrics)


class Report(msgspec.Struct):
    """The fields that are read."""

    metadata: _Metadata
    benchmarks: list[_Benchmark]


def read_guidellm(data: bytes, name: str) -> Imported:
    """Raises UsageError and msgspec.ValidationError."""
    report = msgspec.json.decode(data, type=Report)
    if len(report.benchmarks) != 1:
        raise UsageError(
            f"{name} holds {len(report.benchmarks)} benchmarks of guidellm; export one at a time, since each is a measurement"
        )
    benchmark = report.benchmarks[0]
    requests = benchmark.requests
    records = [_record(request, failed=False) for request in requests.successful]
    records += [_record(request, failed=True) for request in requests.errored]
    made = benchmark.scheduler_metrics.requests_made
    caveats = [
        "guidellm keeps the times of the first and the last token only: ITL is each request's mean, and gaps are unknown."
    ]
    if made.successful + made.errored > len(records):
        caveats.append(
            f"The report holds {len(records)} of {made.successful + made.errored} requests (guidellm's sample_size)."
        )
    if requests.incomplete:
        caveats.append(
            f"{len(requests.incomplete)} requests were cut off by the end of the benchmark and are left out."
        )
    return Imported(
        source=Source(tool="guidellm", version=report.metadata.guidellm_version, file=name),
        server=Server(url=benchmark.config.backend.target, model=benchmark.config.backend.model),
        load=_load(benchmark.config.strategy),
        prompts=Prompts(name=None),
        records=tuple(records),
        unix_s=0.0,
        caveats=tuple(caveats),
    )


def _record(request: _Request, failed: bool) -> ClientRecord:
    at = request.info.timings
    due_s = at.targeted_start if at.targeted_start is not None else at.scheduled_at
    sent_s = at.request_start if at.request_start is not None else due_s
    end_s = at.request_end if at.request_end is not None else at.resolve_end
    if due_s is None or sent_s is None or end_s is None:
        raise UsageError(f"request {request.request_id} of the report has no times")
    first_s, last_s, tokens = at.first_token_iteration, at.last_token_iteration, request.output_tokens
    times: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    if first_s is not None and tokens:
        several = last_s is not None and tokens > 1 and last_s > first_s
        times = (first_s, last_s) if several and last_s is not None else (first_s,)
        counts = (1, tokens - 1) if several else (tokens,)
    return ClientRecord(
        item_id=request.request_id,
        category="imported",
        scheduled_s=min(due_s, sent_s),
        sent_s=sent_s,
        finished_s=end_s,
        first_token_s=first_s,
        chunk_times_s=times,
        chunk_tokens=counts,
        tokens_source=None if tokens is None else "total",
        prompt_tokens=request.prompt_tokens,
        cached_tokens=request.cached_tokens,
        output_tokens=tokens,
        error=(request.info.error or "failed, with no reason given") if failed else None,
        error_kind=ErrorKind.SERVER if failed else None,
    )


def _load(strategy: _Strategy) -> Load:
    kind, rate, streams = strategy.type_, strategy.rate, strategy.streams
    if kind in ("constant", "poisson", "async") and rate:
        text = f"open loop, {kind} {rate:g} requests/s"
        return Load(kind="poisson" if kind == "poisson" else "constant", text=text, rate_per_s=rate)
    if kind == "synchronous" or (kind == "concurrent" and streams):
        together = streams or 1
        return Load(kind="closed", text=f"closed loop, {together} in flight", concurrency=together)
    return Load(kind="unknown", text=f"guidellm's {kind}")
