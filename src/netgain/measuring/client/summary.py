"""The definition of every figure that netgain reports about a run, in one place. None means that there is no such value."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from netgain.measuring.client.interval import effective_count, share_interval
from netgain.measuring.client.percentiles import Percentiles, per_request, per_token, ratio, weigh
from netgain.measuring.client.quantile import is_thin, quantile, weighted_quantile
from netgain.measuring.client.record import ClientRecord, ErrorKind, TokensSource
from netgain.measuring.workload.slo import SLO, Target


class TargetResult(msgspec.Struct, frozen=True):
    """One SLO target over the run: the value at its quantile, and whether it holds (None: no value)."""

    target: str
    value_s: float | None
    met: bool | None
    thin: bool


class LittlesLaw(msgspec.Struct, frozen=True):
    """Requests in flight as counted, and as arrival rate times mean time from sending to end.

    `deviation` = derived / counted - 1. It is far from 0 when the load is not steady (a growing queue), and when the records do
    not hold every request.
    """

    in_flight: float
    rate_per_s: float
    mean_time_s: float
    derived: float
    deviation: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in figures. Latencies count from the scheduled time; definitions in docs/measuring.md.

    `tokens_source`: requests by the rule their tokens were counted with; runs judged by different rules are not compared.
    Rates are of what happened within `window_s`, the time of steady load: requests that ended, tokens that came.
    `output_tokens` of all requests that count; None when one successful request has an unknown count, as the prompt's.
    `attainment`: share of all requests that meet the SLO, with its 95 % interval; `unjudged` of them showed no token.
    `resent`: requests that were sent a second time, because the server had closed the connection that was used again.
    """

    requests: int
    succeeded: int
    failed: int
    unscheduled: int
    resent: int | None = None  # None: not said by whoever measured
    errors: dict[ErrorKind, int]
    error_rate: float | None
    window_s: float
    ttft: Percentiles
    first_text: Percentiles
    tpot: Percentiles
    itl: Percentiles
    chunk_gap: Percentiles
    e2e: Percentiles
    lateness: Percentiles
    tokens_source: dict[TokensSource, int]
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    output_tokens_per_s: float | None
    requests_per_s: float | None
    slo: str | None
    slo_targets: tuple[TargetResult, ...]
    attainment: float | None
    attainment_interval: tuple[float, float] | None
    unjudged: int
    goodput_per_s: float | None
    goodput_interval: tuple[float, float] | None
    little: LittlesLaw | None
    void: str | None

    @property
    def usable(self) -> bool:
        """Whether any figure about the server may be read off: something succeeded, and the client was no bottleneck."""
        return self.succeeded > 0 and self.void is None


class Sample(Protocol):
    """What figures are made of: a run of this client, or what another tool recorded. Fields as in Run."""

    @property
    def records(self) -> tuple[ClientRecord, ...]: ...
    @property
    def warm_up(self) -> tuple[ClientRecord, ...]: ...
    @property
    def started_s(self) -> float: ...
    @property
    def finished_s(self) -> float: ...
    @property
    def steady_until_s(self) -> float: ...
    @property
    def changes(self) -> tuple[tuple[float, int], ...]: ...
    @property
    def unfinished_sent_s(self) -> tuple[float, ...]: ...
    @property
    def unscheduled(self) -> int: ...
    @property
    def void(self) -> str | None: ...


def summarise(run: Sample, slo: SLO | None = None) -> Summary:
    """Turn a run into figures. Never fails on empty, failed or tokenless answers: what is not known is None."""
    records = run.records
    good = [record for record in records if record.ok]
    failed = len(records) - len(good)
    began_s, ended_s = window(run)
    window_s = ended_s - began_s
    everyone = (*run.warm_up, *records)
    ended = sum(record.ok and began_s <= record.finished_s <= ended_s for record in everyone)
    little = littles_law(run)
    overlap = max(1.0, 0.0 if little is None else little.in_flight)
    judged = [slo.met_by(record) for record in records] if slo is not None else []
    met = np.array([answer is True for answer in judged], dtype=np.float64)
    attainment = None if slo is None or not records else float(met.mean())
    within = None if attainment is None else _attained(attainment, met, overlap)
    arriving = ratio(sum(began_s <= record.scheduled_s <= ended_s for record in records), window_s)
    return Summary(
        requests=len(records),
        succeeded=len(good),
        failed=failed,
        unscheduled=run.unscheduled,
        resent=sum(record.resent for record in records),
        errors=dict(Counter(record.error_kind for record in records if record.error_kind is not None)),
        error_rate=ratio(failed, len(records)),
        window_s=window_s,
        ttft=per_request([record.ttft_s for record in records], overlap),
        first_text=per_request([record.first_text_after_s for record in records], overlap),
        tpot=per_request([record.tpot_s for record in records], overlap),
        itl=per_token([record.token_gaps() if record.ok else None for record in records], overlap),
        chunk_gap=per_token([_pauses(record) if record.ok else None for record in records], overlap),
        e2e=per_request([record.e2e_s for record in records], overlap),
        lateness=per_request([record.lateness_s for record in records], overlap),
        tokens_source=dict(Counter(record.tokens_source for record in good if record.tokens_source is not None)),
        prompt_tokens=_total([record.prompt_tokens for record in good]),
        cached_tokens=_total([record.cached_tokens for record in good]),
        output_tokens=_total([record.output_tokens for record in good]),
        output_tokens_per_s=_tokens_per_s(everyone, began_s, ended_s),
        requests_per_s=ratio(ended, window_s),
        slo=None if slo is None else str(slo),
        slo_targets=() if slo is None else tuple(_judge(target, records) for target in slo.targets),
        attainment=attainment,
        attainment_interval=within,
        unjudged=sum(answer is None for answer in judged),
        goodput_per_s=None if attainment is None or arriving is None else attainment * arriving,
        goodput_interval=None if within is None or arriving is None else (within[0] * arriving, within[1] * arriving),
        little=little,
        void=run.void,
    )


def window(run: Sample) -> tuple[float, float]:
    """Begin and end of the steady load, in the client's monotonic seconds; of the whole run where nearly all of it was ramp."""
    if run.steady_until_s - run.started_s < 0.5 * (run.finished_s - run.started_s):
        return run.started_s, run.finished_s
    return run.started_s, run.steady_until_s


def littles_law(run: Sample) -> LittlesLaw | None:
    """None without requests in flight."""
    began_s, ended_s = window(run)
    span_s = ended_s - began_s
    inside = [record for record in run.records if record.sent_s <= ended_s]
    if span_s <= 0.0 or not inside:
        return None
    counted = mean_in_flight(run.changes, began_s, ended_s)
    if counted <= 0.0:
        return None
    # what was in flight when the run was ended early has no record, but was there
    open_s = [run.finished_s - sent_s for sent_s in run.unfinished_sent_s if began_s <= sent_s <= ended_s]
    seen = len(inside) + len(open_s)
    mean_s = math.fsum((*(record.finished_s - record.sent_s for record in inside), *open_s)) / seen
    rate = seen / span_s
    return LittlesLaw(counted, rate, mean_s, rate * mean_s, rate * mean_s / counted - 1.0)


def mean_in_flight(changes: Sequence[tuple[float, int]], began_s: float, ended_s: float) -> float:
    """Time average over a span that is not empty; `changes` as in Run."""
    area, now, since_s = 0.0, 0, began_s
    for at_s, in_flight in changes:
        at_s = min(max(at_s, began_s), ended_s)
        area += now * (at_s - since_s)
        now, since_s = in_flight, at_s
    return (area + now * (ended_s - since_s)) / (ended_s - began_s)


def format_seconds(value: float | None) -> str:
    """`12.3 ms`, `1.23 s`, `failed` for infinity, `n/a` where there is no value."""
    if value is None:
        return "n/a"
    if math.isinf(value):
        return "failed"
    return f"{value * 1e3:.1f} ms" if abs(value) < 1.0 else f"{value:.2f} s"


def _attained(share: float, met: NDArray[np.float64], overlap: float) -> tuple[float, float] | None:
    effective = effective_count(met, np.ones_like(met), overlap)
    return None if effective is None else share_interval(share, effective)


def _pauses(record: ClientRecord) -> list[tuple[float, int]]:
    return [(gap_s, 1) for gap_s in record.chunk_gaps_s()]


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _tokens_per_s(records: Sequence[ClientRecord], began_s: float, ended_s: float) -> float | None:
    """Tokens of successful answers that came within the window; those of no chunk count where their answer ended."""
    tokens = 0
    known = False
    for record in records:
        if not record.ok:
            continue
        if record.output_tokens is None:
            return None
        known = True
        if record.chunk_times_s:
            tokens += sum(
                count
                for at_s, count in zip(record.chunk_times_s, record.chunk_tokens, strict=True)
                if began_s <= at_s <= ended_s
            )
        elif began_s <= record.finished_s <= ended_s:
            tokens += record.output_tokens
    return ratio(tokens, ended_s - began_s) if known else None


def _judge(target: Target, records: Sequence[ClientRecord]) -> TargetResult:
    value: float | None
    match target.metric:
        case "itl":
            requests, weight = weigh([record.token_gaps() if record.ok else None for record in records])
            value = weighted_quantile([pair for request in requests for pair in request], target.quantile)
            count = round(weight)
        case "ttft":
            value, count = _known([record.ttft_s for record in records], target.quantile)
        case "tpot":
            value, count = _known([record.tpot_s for record in records], target.quantile)
        case "e2e":
            value, count = _known([record.e2e_s for record in records], target.quantile)
    met = None if value is None else value <= target.limit_s
    return TargetResult(str(target), value, met, is_thin(count, target.quantile))


def _known(values: Sequence[float | None], share: float) -> tuple[float | None, int]:
    samples = [value for value in values if value is not None]
    return quantile(samples, share), len(samples)
