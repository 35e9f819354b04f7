"""The definition of every figure that netgain reports about a run, in one place. None means that there is no such value."""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from netgain.measuring.client.quantile import is_thin, quantile, quantile_interval, weighted_quantile
from netgain.measuring.client.record import ClientRecord, ErrorKind, TokensSource
from netgain.measuring.client.run import Run
from netgain.measuring.workload.slo import SLO, Target


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in seconds. Failed requests are in the percentiles as infinite, in `mean` not at all.

    `count`: samples, without failures. `failed`: failed requests inside the percentiles. `thin`: the percentiles that
    are simply the most extreme sample, because there are too few. `interval`: for p50, p95 and p99 the 95 % confidence
    interval (None: too few samples, or samples that are not independent, such as the tokens of one request).
    JSON knows no infinity and shows null: null with `failed` above 0 reads "failed".
    """

    count: int
    failed: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    thin: tuple[str, ...]
    interval: dict[str, tuple[float, float] | None]


class TargetResult(msgspec.Struct, frozen=True):
    """One SLO target over the run: the value at its quantile, and whether it holds (None: no value)."""

    target: str
    value_s: float | None
    met: bool | None
    thin: bool


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in figures. Latencies count from the scheduled time; definitions in docs/measuring.md.

    `tokens_source`: requests by the rule their tokens were counted with; runs judged by different rules are not compared.
    `output_tokens` is None when one successful request has an unknown count. Rates are per second of `window_s`.
    `attainment`: share of all requests that meet the SLO; `unjudged` of them showed no token. `little_gap`: relative
    difference between the requests in flight as counted and as rate times mean time (above 5 % the records are doubtful).
    """

    requests: int
    succeeded: int
    failed: int
    unscheduled: int
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
    output_tokens: int | None
    output_tokens_per_s: float | None
    requests_per_s: float | None
    slo: str | None
    slo_targets: tuple[TargetResult, ...]
    attainment: float | None
    unjudged: int
    goodput_per_s: float | None
    little_gap: float | None
    void: str | None

    @property
    def usable(self) -> bool:
        """Whether any figure about the server may be read off: something succeeded, and the client was no bottleneck."""
        return self.succeeded > 0 and self.void is None


def summarise(run: Run, slo: SLO | None = None) -> Summary:
    """Turn a run into figures. Never fails on empty, failed or tokenless answers: what is not known is None."""
    records = run.records
    good = [record for record in records if record.ok]
    failed = len(records) - len(good)
    counts = [record.output_tokens for record in good]
    tokens = None if None in counts or not good else sum(count or 0 for count in counts)
    window_s = run.window_s
    judged = [slo.met_by(record) for record in records] if slo is not None else []
    met = sum(answer is True for answer in judged)
    return Summary(
        requests=len(records),
        succeeded=len(good),
        failed=failed,
        unscheduled=run.unscheduled,
        errors=dict(Counter(record.error_kind for record in records if record.error_kind is not None)),
        error_rate=_ratio(failed, len(records)),
        window_s=window_s,
        ttft=per_request([record.ttft_s for record in records]),
        first_text=per_request([record.first_text_after_s for record in records]),
        tpot=per_request([record.tpot_s for record in records]),
        itl=per_token([record.token_gaps() for record in good], failed),
        chunk_gap=per_token([[(gap_s, 1) for gap_s in record.chunk_gaps_s()] for record in good], failed),
        e2e=per_request([record.e2e_s for record in records]),
        lateness=per_request([record.lateness_s for record in records]),
        tokens_source=dict(Counter(record.tokens_source for record in good if record.tokens_source is not None)),
        output_tokens=tokens,
        output_tokens_per_s=None if tokens is None else _ratio(tokens, window_s),
        requests_per_s=_ratio(len(good), window_s),
        slo=None if slo is None else str(slo),
        slo_targets=() if slo is None else tuple(_judge(target, records) for target in slo.targets),
        attainment=None if slo is None else _ratio(met, len(records)),
        unjudged=sum(answer is None for answer in judged),
        goodput_per_s=None if slo is None else _ratio(met, window_s),
        little_gap=_little_gap(run),
        void=run.void,
    )


def per_request(values: Sequence[float | None]) -> Percentiles:
    """One sample per request; None (no such value) is left out, infinity (failed) is not."""
    samples = [value for value in values if value is not None]
    finite = [value for value in samples if math.isfinite(value)]
    return Percentiles(
        count=len(finite),
        failed=len(samples) - len(finite),
        mean=_ratio(math.fsum(finite), len(finite)),
        p50=quantile(samples, 0.50),
        p95=quantile(samples, 0.95),
        p99=quantile(samples, 0.99),
        thin=_thin(len(samples)),
        interval={name: quantile_interval(samples, share) if samples else None for name, share in _SHARES},
    )


def per_token(gaps: Sequence[list[tuple[float, int]]], failed: int) -> Percentiles:
    """Many samples per successful request, as (seconds, how often).

    A failed request weighs as much as the mean successful one, so that 2 % failures take the same place among the
    tokens as among the requests.
    """
    samples, weight = _weighed(gaps, failed)
    return Percentiles(
        count=round(weight),
        failed=failed,
        mean=_ratio(math.fsum(gap_s * times for gap_s, times in samples if math.isfinite(gap_s)), weight),
        p50=weighted_quantile(samples, 0.50),
        p95=weighted_quantile(samples, 0.95),
        p99=weighted_quantile(samples, 0.99),
        thin=_thin(round(weight)),
        interval={name: None for name, _ in _SHARES},
    )


def format_seconds(value: float | None) -> str:
    """`12.3 ms`, `1.23 s`, `failed` for infinity, `n/a` where there is no value."""
    if value is None:
        return "n/a"
    if math.isinf(value):
        return "failed"
    return f"{value * 1e3:.1f} ms" if abs(value) < 1.0 else f"{value:.2f} s"


_SHARES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))


def _weighed(gaps: Sequence[list[tuple[float, int]]], failed: int) -> tuple[list[tuple[float, float]], float]:
    """(value, weight) of every gap, failures as one infinite value, and the weight of the successes."""
    samples = [(gap_s, float(times)) for request in gaps for gap_s, times in request]
    weight = math.fsum(times for _, times in samples)
    if failed:
        samples.append((math.inf, failed * (weight / len(gaps) if weight else 1.0)))
    return samples, weight


def _thin(count: int) -> tuple[str, ...]:
    return tuple(name for name, share in _SHARES if is_thin(count, share))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _judge(target: Target, records: Sequence[ClientRecord]) -> TargetResult:
    value: float | None
    match target.metric:
        case "itl":
            good = [record.token_gaps() for record in records if record.ok]
            pairs, weight = _weighed(good, len(records) - len(good))
            value, count = weighted_quantile(pairs, target.quantile), round(weight)
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


def _little_gap(run: Run) -> float | None:
    """|L - rate x time| / L, with both sides over the meter's span; None without requests in flight."""
    counted = run.client.in_flight_mean
    if not counted or not run.client.wall_s:
        return None
    derived = math.fsum(record.finished_s - record.sent_s for record in run.records) / run.client.wall_s
    return abs(counted - derived) / counted
