"""Results of `vllm bench serve --save-result`; with `--save-detailed` they hold every request, without it only figures.

Read from vLLM 0.32 (benchmarks/serve.py). `start_times` and `ttfts` are of sending, `queue_times` what a request waited in the
client before that, `itls` gaps between chunks, not tokens.
"""

import math
from datetime import datetime
from typing import Any, cast

import msgspec

from netgain.errors import UsageError
from netgain.measuring.client.percentiles import Percentiles
from netgain.measuring.client.record import ClientRecord, ErrorKind
from netgain.measuring.client.summary import Summary
from netgain.measuring.measurement.imported import Imported, spread_tokens
from netgain.measuring.measurement.result import Load, Prompts, Server, Source

_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors")


class VllmBench(msgspec.Struct, kw_only=True):
    """The fields that are read; milliseconds of aggregates come as `mean_ttft_ms` and the like."""

    date: str
    model_id: str
    completed: int
    failed: int | None = None
    num_prompts: int | None = None
    duration: float
    request_rate: float | str | None = None
    burstiness: float | None = None
    max_concurrency: int | None = None
    total_input_tokens: int | None = None
    total_output_tokens: int | None = None
    output_throughput: float | None = None
    request_throughput: float | None = None
    request_goodput: float | None = None
    input_lens: list[int] | None = None
    output_lens: list[int] | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None
    latencies: list[float] | None = None
    start_times: list[float] | None = None
    queue_times: list[float] | None = None
    errors: list[str] | None = None


def read_vllm_bench(data: bytes, name: str) -> Imported:
    """Raises UsageError and msgspec.ValidationError."""
    found = msgspec.json.decode(data, type=VllmBench)
    figures = cast(dict[str, Any], msgspec.json.decode(data))
    records = _records(found, name)
    return Imported(
        source=Source(tool="vllm bench serve", file=name),
        server=Server(url=None, model=found.model_id),
        load=_load(found),
        prompts=Prompts(name=None),
        records=records,
        unix_s=_ended_unix_s(found, records),
        summary=None if records else _summary(found, figures),
        caveats=_caveats(found, bool(records)),
    )


def _load(found: VllmBench) -> Load:
    rate = float(found.request_rate) if found.request_rate is not None else math.inf
    if math.isfinite(rate):
        shape = found.burstiness
        poisson = shape is None or shape == 1.0
        cv = None if poisson or not shape else shape**-0.5
        capped = f", at most {found.max_concurrency} in flight" if found.max_concurrency else ""
        kind = "Poisson" if poisson else f"bursty (cv {cv:.3g})"
        return Load(
            kind="poisson" if poisson else "bursty",
            text=f"open loop, {kind} {rate:g} requests/s{capped}",
            rate_per_s=rate,
            concurrency=found.max_concurrency,
            cv=cv,
        )
    if found.max_concurrency:
        text = f"closed loop, {found.max_concurrency} in flight"
        return Load(kind="closed", text=text, concurrency=found.max_concurrency)
    return Load(kind="unknown", text="all requests at once")


def _records(found: VllmBench, name: str) -> tuple[ClientRecord, ...]:
    if found.start_times is None or found.ttfts is None or found.itls is None or found.latencies is None:
        return ()
    count = len(found.start_times)
    for field in _LISTS:
        values = getattr(found, field)
        if values is not None and len(values) != count:
            raise UsageError(f"{name} is damaged: it has {count} start times, but {len(values)} {field}")
    records = []
    for place, start_s in enumerate(found.start_times):
        error = found.errors[place] if found.errors is not None else ""
        itls = found.itls[place]
        first_s = start_s + found.ttfts[place]
        tokens = found.output_lens[place] if found.output_lens is not None else None
        chunks = len(itls) + 1 if found.ttfts[place] > 0.0 else 0
        times, at_s = [], first_s
        for gap_s in (0.0, *itls)[:chunks]:
            at_s += gap_s
            times.append(at_s)
        waited_s = found.queue_times[place] if found.queue_times is not None else 0.0
        records.append(
            ClientRecord(
                item_id=f"{place:06d}",
                category="imported",
                scheduled_s=start_s - waited_s,
                sent_s=start_s,
                finished_s=start_s + found.latencies[place],
                first_token_s=first_s if chunks else None,
                chunk_times_s=tuple(times),
                chunk_tokens=spread_tokens(chunks, tokens),
                tokens_source="total" if tokens is not None else "chunks",
                prompt_tokens=found.input_lens[place] if found.input_lens is not None else None,
                output_tokens=tokens,
                error=error.strip().splitlines()[-1][:300] if error else None,
                error_kind=ErrorKind.SERVER if error else None,
            )
        )
    return tuple(records)


def _ended_unix_s(found: VllmBench, records: tuple[ClientRecord, ...]) -> float | None:
    """`date` is the local time of the end, to the second; the records' own clock has no other anchor."""
    try:
        ended = datetime.strptime(found.date, "%Y%m%d-%H%M%S").timestamp()
    except ValueError:
        return None
    return ended - max(record.finished_s for record in records) if records else ended


def _summary(found: VllmBench, figures: dict[str, Any]) -> Summary:
    failed = found.failed or 0
    nothing = Percentiles(count=0, failed=0, mean=None, p50=None, p95=None, p99=None)

    def of(name: str, count: int | None) -> Percentiles:
        def value(key: str) -> float | None:
            found_ms = figures.get(f"{key}_{name}_ms")
            return float(found_ms) / 1e3 if isinstance(found_ms, int | float) else None

        if value("mean") is None:
            return nothing
        p50 = value("p50")
        return Percentiles(
            count=count,
            failed=0,
            mean=value("mean"),
            p50=value("median") if p50 is None else p50,
            p95=value("p95"),
            p99=value("p99"),
        )

    tokens = found.total_output_tokens
    return Summary(
        requests=found.completed + failed,
        succeeded=found.completed,
        failed=failed,
        unscheduled=0,
        errors={ErrorKind.SERVER: failed} if failed else {},
        error_rate=failed / (found.completed + failed) if found.completed + failed else None,
        window_s=found.duration,
        ttft=of("ttft", found.completed),
        first_text=nothing,
        tpot=of("tpot", found.completed),
        itl=nothing,
        chunk_gap=of("itl", None),
        e2e=of("e2el", found.completed),
        lateness=nothing,
        tokens_source={"total": found.completed},
        prompt_tokens=found.total_input_tokens,
        cached_tokens=None,
        output_tokens=tokens,
        output_tokens_per_s=found.output_throughput,
        requests_per_s=found.request_throughput,
        slo=None,
        slo_targets=(),
        attainment=None,
        attainment_interval=None,
        unjudged=0,
        goodput_per_s=found.request_goodput,
        goodput_interval=None,
        little=None,
        void=None,
    )


def _caveats(found: VllmBench, detailed: bool) -> tuple[str, ...]:
    said = []
    if detailed:
        if found.queue_times is None:
            said.append(
                "Latency counts from sending: this version does not tell what requests waited in the client before."
            )
        said.append("vLLM keeps gaps between chunks; an answer's tokens are spread evenly over its chunks.")
    else:
        said.append(
            "Only figures were saved (--save-detailed keeps the requests): percentiles are vLLM's own, interpolated, from "
            "sending, without failures, and rates are of the whole run. What vLLM calls ITL is the gap between chunks."
        )
    return tuple(said)
