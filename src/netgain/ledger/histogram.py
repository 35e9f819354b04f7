"""A Prometheus histogram for what is observed with every token: the client library's own takes locks and one value at a time."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class WeightedHistogram(Collector):
    """One thread observes; a scrape on another one may miss what is observed meanwhile, and takes it up the next time."""

    def __init__(self, name: str, text: str, buckets: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)  # the last one: above all bounds
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """`count` observations of the same value."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def collect(self) -> Iterator[HistogramMetricFamily]:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        totals = list(accumulate(self._counts))
        buckets = [(name, float(total)) for name, total in zip(names, totals, strict=True)]
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)
