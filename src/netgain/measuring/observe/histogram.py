"""A histogram's growth over a window: checked before anything is read off it, and never read beyond its largest bound."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from netgain.measuring.observe.exposition import Family, Labels

_CONFUSED = 1e-6  # counts are whole numbers; what differs by less is rounding


class HistogramDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Observations that a histogram gained in a window, all its label sets together.

    `buckets`: (upper bound, how many at most that large), ascending, without the infinite one, which holds `count` and which
    JSON could not keep. `problem`: why no percentile may
    be read off; counts are then None too where they cannot be trusted.
    """

    count: float | None
    sum: float | None
    buckets: tuple[tuple[float, float], ...] = ()
    problem: str | None = None

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count and self.sum is not None else None

    @property
    def _cumulative(self) -> tuple[tuple[float, float], ...]:
        return (*self.buckets, (math.inf, self.count or 0.0))

    def quantile(self, share: float) -> tuple[float, bool] | None:
        """(value, above): linear within its bucket as Prometheus does it; `above`: it lies above the largest finite bound,
        which is then the value. None without observations or with a problem."""
        if self.problem is not None or not self.count or not self.buckets:
            return None
        aim, low, before = share * self.count, 0.0, 0.0
        for bound, reached in self._cumulative:
            if reached >= aim and reached > before:
                if math.isinf(bound):
                    return low, True
                low = min(low, bound)
                return low + (bound - low) * (aim - before) / (reached - before), False
            low, before = bound, reached
        return None

    def between(self, share: float) -> tuple[float, float] | None:
        """The bounds of the bucket in which that quantile lies, which is all that a histogram knows of it."""
        if self.quantile(share) is None:
            return None
        aim, low, before = share * (self.count or 0.0), 0.0, 0.0
        for bound, reached in self._cumulative:
            if reached >= aim and reached > before:
                return min(low, bound), bound
            low, before = bound, reached
        return None


Counts = Mapping[tuple[str, Labels], float]  # by sample name and labels


def histogram_delta(family: Family, gained: Counts, name: str) -> HistogramDelta:
    """`gained`: what each sample of `family` rose by in the window."""
    series: dict[Labels, dict[float, float]] = defaultdict(dict)
    for sample in family.samples:
        if sample.name == f"{name}_bucket":
            rest = dict(sample.labels)
            try:
                bound = float(rest.pop("le"))
            except (KeyError, ValueError):
                return HistogramDelta(count=None, sum=None, problem="a bucket without a bound")
            series[tuple(sorted(rest.items()))][bound] = gained[sample.name, sample.labels]
    counts = _of(family, gained, f"{name}_count")
    total = None if not counts else math.fsum(counts.values())
    if total is not None and not math.isfinite(total):
        return HistogramDelta(count=None, sum=None, problem="its count is no number")
    summed = math.fsum(_of(family, gained, f"{name}_sum").values()) if _of(family, gained, f"{name}_sum") else None
    if summed is not None and not math.isfinite(summed):
        summed = None
    merged: dict[float, float] = defaultdict(float)
    bounds = {tuple(sorted(buckets)) for buckets in series.values()}
    if len(bounds) > 1:
        return HistogramDelta(count=total, sum=summed, problem="its label sets have different bounds")
    for labels, buckets in series.items():
        problem = _problem(sorted(buckets.items()), counts.get(labels))
        if problem is not None:
            return HistogramDelta(count=total, sum=summed, problem=problem)
        for bound, reached in buckets.items():
            merged[bound] += reached
    if not merged:
        return HistogramDelta(count=total, sum=summed, problem="it has no buckets")
    ordered = tuple(sorted(merged.items()))
    return HistogramDelta(count=ordered[-1][1] if total is None else total, sum=summed, buckets=ordered[:-1])


def _of(family: Family, gained: Counts, name: str) -> dict[Labels, float]:
    return {sample.labels: gained[sample.name, sample.labels] for sample in family.samples if sample.name == name}


def _problem(buckets: Iterable[tuple[float, float]], count: float | None) -> str | None:
    before, bound = 0.0, -math.inf
    for bound, reached in buckets:
        if not math.isfinite(reached):
            return f"its bucket up to {bound:g} is no number"
        if reached < before - _CONFUSED:
            return f"its buckets are not cumulative: {reached:g} up to {bound:g}, {before:g} below"
        before = reached
    if not math.isinf(bound):
        return "it has no +Inf bucket"
    if count is not None and abs(count - before) > _CONFUSED:
        return f"its +Inf bucket ({before:g}) is not its count ({count:g})"
    return None
