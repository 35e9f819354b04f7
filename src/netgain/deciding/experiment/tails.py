"""The slow end of a distribution: p95 and p99 of both arms, and what is known of their difference."""

import math
from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation, clip_failures
from netgain.deciding.experiment.resampling import Floats, Ints, Resampling, resampling
from netgain.deciding.experiment.statistics import CONFIDENCE, effect, t_quantile
from netgain.measuring.client.quantile import is_thin
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.workload.slo import Metric


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """One quantile of both arms, in seconds: infinite where failures reach it, None where nothing is known.

    `difference_s` is candidate - baseline, `ratio` baseline / candidate (above 1 the candidate is faster), each with its
    interval. `thin`: so few requests that the quantile is simply the slowest of them.
    """

    metric: Metric
    share: float
    baseline_s: float | None
    candidate_s: float | None
    difference_s: float | None
    difference_low_s: float | None
    difference_high_s: float | None
    ratio: float | None
    low: float | None
    high: float | None
    thin: bool

    @property
    def name(self) -> str:
        return f"{self.metric} p{self.share * 100:g}"


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one arm from large to small, how much each counts, and the unit and block that each belongs to."""

    values: Floats
    weights: Floats
    unit: Ints
    block: Ints
    requests: int

    def only(self, blocks: Collection[int]) -> "Pool":
        """The values of some blocks."""
        kept = np.isin(self.block, list(blocks))
        return msgspec.structs.replace(
            self,
            values=self.values[kept],
            weights=self.weights[kept],
            unit=self.unit[kept],
            block=self.block[kept],
        )

    def quantile(self, share: float) -> float | None:
        """Nearest rank; None of an empty pool."""
        if not len(self.values):
            return None
        beyond = np.cumsum(self.weights)
        place = np.searchsorted(beyond, _limit(beyond[-1:], share)[0], side="right")
        return float(self.values[min(int(place), len(beyond) - 1)])

    def quantiles(self, share: float, drawn: Resampling) -> Floats:
        """The quantile in each resample; NaN where a resample has none of the pool's units. Seconds.

        Found by halving: what lies beyond a place in a resample is a sum over units, of what each unit has beyond it.
        """
        size = len(self.values)
        if not size:
            return np.full(len(drawn.times), np.nan)
        beyond = np.zeros((size, drawn.units))
        beyond[np.arange(size), self.unit] = self.weights
        np.cumsum(beyond, axis=0, out=beyond)
        totals = drawn.times @ beyond[-1]
        limits = _limit(totals, share)
        first, last = np.zeros(len(totals), dtype=np.int64), np.full(len(totals), size - 1)
        for _ in range(size.bit_length()):
            middle = (first + last) // 2
            reached = np.einsum("ru,ru->r", drawn.times, beyond[middle]) > limits
            last = np.where(reached, middle, last)
            first = np.where(reached, first, np.minimum(middle + 1, last))
        return np.where(totals > 0.0, self.values[first], np.nan)


def values_of(record: ClientRecord, metric: Metric) -> tuple[Floats, Floats]:
    """The values one request adds to a metric, and how much each counts: one value for the request itself, or for `itl`
    one per chunk after the first, which counts as many times as it has tokens.

    A failure adds an infinite value.
    """
    if metric != "itl" or not record.ok:
        value = {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2e": record.e2e_s, "itl": record.e2e_s}[metric]
        return (np.empty(0), np.empty(0)) if value is None else (np.array([value]), np.ones(1))
    tokens = np.array(record.chunk_tokens[1:], dtype=np.float64)
    times = np.array(record.chunk_times_s, dtype=np.float64)
    if not tokens.all():  # chunks without a token do not end a gap
        carried = np.flatnonzero(np.concatenate(([1.0], tokens)))
        times, tokens = times[carried], tokens[carried[1:] - 1]
    return np.diff(times) / tokens, tokens


class Tails:
    """Both arms' pools of one metric with shared resamples, so that quantiles can be compared resample by resample."""

    def __init__(
        self, observations: Sequence[Observation], metric: Metric, seed: int, baseline: str = BASELINE
    ) -> None:
        self.metric: Metric = metric
        arms = (baseline, CANDIDATE)
        own = [seen for seen in observations if seen.arm in arms]
        found = [values_of(seen.record, metric) for seen in own]
        lengths = np.array([len(values) for values, _ in found], dtype=np.int64)
        places = np.array(
            [(seen.arm == CANDIDATE, seen.start, seen.group, seen.block) for seen in own], dtype=np.int64
        ).reshape(-1, 4)
        candidate, start, group, block = np.repeat(places, lengths, axis=0).T
        values = np.concatenate([values for values, _ in found]) if found else np.empty(0)
        weights = np.concatenate([weights for _, weights in found]) if found else np.empty(0)
        self.drawn = resampling(start, group, seed)
        unit = np.zeros(len(values), dtype=np.int64) if self.drawn is None else self.drawn.of
        order = np.argsort(-values, kind="stable")

        def pool(arm: int) -> Pool:
            kept = order[candidate[order] == arm]
            requests = int(np.sum((places[:, 0] == arm) & (lengths > 0)))
            return Pool(
                values=values[kept], weights=weights[kept], unit=unit[kept], block=block[kept], requests=requests
            )

        self.baseline, self.candidate = pool(0), pool(1)

    def log_spread(self, share: float) -> tuple[Floats, Floats] | None:
        """Logarithms of both quantiles in each resample; None where units are too few."""
        if self.drawn is None or not len(self.baseline.values) or not len(self.candidate.values):
            return None
        found = []
        for pool in (self.baseline, self.candidate):
            drawn = pool.quantiles(share, self.drawn)
            whole = float(pool.values[0]) if (at := pool.quantile(share)) is None else at
            found.append(clip_failures(np.log(np.maximum(np.where(np.isnan(drawn), whole, drawn), 1e-9))))
        return found[0], found[1]

    def tail(self, share: float, confidence: float = CONFIDENCE) -> Tail:
        """Quantile, difference and ratio with their intervals."""
        before, after = self.baseline.quantile(share), self.candidate.quantile(share)
        spread = self.log_spread(share)
        ratio = low = high = difference = least = most = None
        if before is not None and after is not None:
            logs = clip_failures(np.log(np.maximum(np.array([before, after]), 1e-9)))
            found = effect(
                float(logs[0] - logs[1]), None if spread is None else spread[0] - spread[1], self.drawn, 1, confidence
            )
            ratio, low, high = found.ratio, found.low, found.high
            if math.isfinite(before) and math.isfinite(after):
                difference = after - before
                if spread is not None and self.drawn is not None:
                    half = t_quantile(confidence, self.drawn.freedom) * self.drawn.error(
                        np.exp(spread[1]) - np.exp(spread[0])
                    )
                    least, most = difference - half, difference + half
        return Tail(
            metric=self.metric,
            share=share,
            baseline_s=before,
            candidate_s=after,
            difference_s=difference,
            difference_low_s=least,
            difference_high_s=most,
            ratio=ratio,
            low=low,
            high=high,
            thin=is_thin(min(self.baseline.requests, self.candidate.requests), share),
        )


def _limit(totals: Floats, share: float) -> Floats:
    """The weight from the slow end that a quantile leaves beyond it (nearest rank)."""
    limits: Floats = (1.0 - share) * totals * (1 + 1e-9)
    return limits
