"""A distribution of times over requests or over tokens, with what is not known said as such."""

import math
from collections.abc import Sequence

import msgspec

from netgain.measuring.client.interval import quantile_interval
from netgain.measuring.client.quantile import is_thin, quantile, weighted_quantile

_SHARES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in seconds. Failed requests are in the percentiles as infinite, in `mean` not at all.

    `count`: samples, without failures (None: another tool did not say). `failed`: failed requests inside the percentiles.
    `thin`: the percentiles that are simply the most extreme sample, because there are too few. `interval`: 95 % confidence
    intervals of p50, p95 and p99 that allow for neighbours sharing their fate (None: too few samples). JSON knows no infinity
    and shows null, also at the ends of intervals: null with `failed` above 0 reads "failed".
    """

    count: int | None
    failed: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    thin: tuple[str, ...] = ()
    interval: dict[str, tuple[float | None, float | None] | None] = {}


def per_request(values: Sequence[float | None], overlap: float = 1.0) -> Percentiles:
    """One sample per request in order of time; None (no such value) is left out, infinity (failed) is not. `overlap`: the mean
    number of requests in flight, which share their fate."""
    samples = [value for value in values if value is not None]
    finite = [value for value in samples if math.isfinite(value)]
    return Percentiles(
        count=len(finite),
        failed=len(samples) - len(finite),
        mean=ratio(math.fsum(finite), len(finite)),
        p50=quantile(samples, 0.50),
        p95=quantile(samples, 0.95),
        p99=quantile(samples, 0.99),
        thin=_thin(len(samples)),
        interval=_intervals([[(value, 1.0)] for value in samples], overlap),
    )


def per_token(gaps: Sequence[list[tuple[float, int]] | None], overlap: float = 1.0) -> Percentiles:
    """Many samples per request in order of time, as (seconds, how often); None for a request that failed.

    A failed request weighs as much as the mean successful one, so that 2 % failures take the same place among the
    tokens as among the requests.
    """
    requests, weight = weigh(gaps)
    samples = [pair for request in requests for pair in request]
    return Percentiles(
        count=round(weight),
        failed=sum(gap is None for gap in gaps),
        mean=ratio(math.fsum(gap_s * times for gap_s, times in samples if math.isfinite(gap_s)), weight),
        p50=weighted_quantile(samples, 0.50),
        p95=weighted_quantile(samples, 0.95),
        p99=weighted_quantile(samples, 0.99),
        thin=_thin(round(weight)),
        interval=_intervals(requests, overlap),
    )


def weigh(gaps: Sequence[list[tuple[float, int]] | None]) -> tuple[list[list[tuple[float, float]]], float]:
    """(value, weight) of every gap by request, failures as one infinite value, and the weight of the successes."""
    good = [request for request in gaps if request is not None]
    weight = math.fsum(times for request in good for _, times in request)
    failure = (math.inf, weight / len(good) if weight else 1.0)
    return [
        [failure] if request is None else [(gap_s, float(times)) for gap_s, times in request] for request in gaps
    ], weight


def _intervals(
    samples: Sequence[Sequence[tuple[float, float]]], overlap: float
) -> dict[str, tuple[float | None, float | None] | None]:
    return {name: quantile_interval(samples, share, overlap) for name, share in _SHARES}


def _thin(count: int) -> tuple[str, ...]:
    return tuple(name for name, share in _SHARES if is_thin(count, share))


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
