"""What a server's metrics did within a window: counters as what they gained, gauges as what they were, restarts noticed."""

import itertools
import math
from collections.abc import Sequence

import msgspec

from netgain.measuring.observe.exposition import Family, Labels, Snapshot, could_not_read, start_time_s
from netgain.measuring.observe.histogram import HistogramDelta, histogram_delta

_SAME_START_S = 1.5  # clocks that are set while a server runs move its start by less


class CounterDelta(msgspec.Struct, frozen=True):
    """What one label set gained. None: unknown, since it fell (the server began again within the window) or was no number."""

    labels: Labels
    gained: float | None


class GaugeRange(msgspec.Struct, frozen=True, kw_only=True):
    """One label set over the scrapes of the window. `mean` weighs each scrape by the time around it."""

    labels: Labels
    least: float
    mean: float
    most: float
    scrapes: int


class RawSeries(msgspec.Struct, frozen=True):
    """A sample of no known kind, at the window's two ends."""

    name: str
    labels: Labels
    first: float | None
    last: float | None


class ServerWindow(msgspec.Struct, frozen=True, kw_only=True):
    """All families of a server over [began_s, ended_s] (client's monotonic seconds), by the names that the server gave them.

    `restarts`: how the server was seen to have begun again; counters and histograms then say None. `problems`: families that
    were there and could not be read.
    """

    began_s: float
    ended_s: float
    scrapes: int
    missed: int = 0
    counters: dict[str, tuple[CounterDelta, ...]] = {}
    gauges: dict[str, tuple[GaugeRange, ...]] = {}
    histograms: dict[str, HistogramDelta] = {}
    raw: tuple[RawSeries, ...] = ()
    restarts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def gained(self, name: str, **labels: str) -> float | None:
        """The sum over the label sets that have `labels`; None where the counter is not there or began again."""
        found = [delta.gained for delta in self.counters.get(name, ()) if labels.items() <= dict(delta.labels).items()]
        known = [value for value in found if value is not None]
        return math.fsum(known) if known and len(known) == len(found) else None


def observed(snapshots: Sequence[Snapshot], missed: int = 0) -> ServerWindow | None:
    """The window between the first and the last of `snapshots`, in order of time. None with fewer than two.

    A label set that appears within the window began at 0, and so did a family, unless the first scrape had it malformed. A label
    set that is gone at the end is as unknown as a restart.
    """
    if len(snapshots) < 2:
        return None
    first, last = snapshots[0], snapshots[-1]
    restarts = _restarts(snapshots)
    problems = dict.fromkeys(problem for snapshot in snapshots for problem in snapshot.problems)
    counters: dict[str, tuple[CounterDelta, ...]] = {}
    gauges: dict[str, tuple[GaugeRange, ...]] = {}
    histograms: dict[str, HistogramDelta] = {}
    raw: list[RawSeries] = []
    for name in sorted(first.families.keys() | last.families.keys()):
        family = last.families.get(name) or first.families[name]
        if family.kind == "counter":
            counters[name] = _gains(name, snapshots, restarted=bool(restarts))
        elif family.kind == "gauge":
            gauges[name] = _ranges(name, snapshots)
        elif family.kind == "histogram":
            histograms[name] = _histogram(name, family, snapshots, restarted=bool(restarts))
        else:
            raw += _raw(name, first, last)
    unknown = [name for name, deltas in counters.items() if any(delta.gained is None for delta in deltas)]
    fell = sorted(name for name in unknown if any(map(_falls, _series(name, snapshots).values())))
    if fell and not restarts:
        restarts = (f"{fell[0]} fell" + (f", and {len(fell) - 1} more" if len(fell) > 1 else ""),)
    return ServerWindow(
        began_s=first.at_s,
        ended_s=last.at_s,
        scrapes=len(snapshots),
        missed=missed,
        counters=counters,
        gauges=gauges,
        histograms=histograms,
        raw=tuple(raw),
        restarts=restarts,
        problems=tuple(problems),
    )


def _restarts(snapshots: Sequence[Snapshot]) -> tuple[str, ...]:
    known = [start for start in map(start_time_s, snapshots) if start is not None]
    jumps = [later for earlier, later in itertools.pairwise(known) if later - earlier > _SAME_START_S]
    return tuple(f"its process started anew at {jump:.0f} (Unix time)" for jump in jumps)


def _values(name: str, snapshot: Snapshot) -> dict[tuple[str, Labels], float]:
    family = snapshot.families.get(name)
    return {} if family is None else {(sample.name, sample.labels): sample.value for sample in family.samples}


def _gains(name: str, snapshots: Sequence[Snapshot], restarted: bool) -> tuple[CounterDelta, ...]:
    gained = _gained(name, snapshots, restarted)
    return tuple(CounterDelta(labels, gained[sample, labels]) for sample, labels in sorted(gained))


def _gained(name: str, snapshots: Sequence[Snapshot], restarted: bool) -> dict[tuple[str, Labels], float | None]:
    """By sample: how much it rose over all snapshots, None when it fell between any two, vanished, or was no number at an end."""
    gained: dict[tuple[str, Labels], float | None] = {}
    for key, series in _series(name, snapshots).items():
        begin = series[0] or 0.0
        end = series[-1]
        if restarted or end is None or not math.isfinite(end - begin) or _falls(series):
            gained[key] = None
        else:
            gained[key] = end - begin
    return gained


def _series(name: str, snapshots: Sequence[Snapshot]) -> dict[tuple[str, Labels], list[float | None]]:
    """By sample: its values in order of time, None where it was not told."""
    ends = [snapshots[-1]]
    if not could_not_read(snapshots[0], name):
        ends.append(snapshots[0])  # a family that is told once it has happened began at 0, as a label set does
    seen = [_values(name, each) for each in snapshots if name in each.families or any(each is end for end in ends)]
    return {key: [values.get(key) for values in seen] for key in {key for values in seen for key in values}}


def _falls(series: Sequence[float | None]) -> bool:
    """Whether a counter fell or vanished. What is no number (NaN, infinity) says neither."""
    before = 0.0
    for value in series:
        if value is None:
            if before != 0.0:
                return True
        elif math.isfinite(value):
            if value < before:
                return True
            before = value
    return False


def _ranges(name: str, snapshots: Sequence[Snapshot]) -> tuple[GaugeRange, ...]:
    series: dict[Labels, list[tuple[float, float]]] = {}
    for snapshot in snapshots:
        for (_, labels), value in _values(name, snapshot).items():
            if math.isfinite(value):
                series.setdefault(labels, []).append((snapshot.at_s, value))
    return tuple(
        GaugeRange(
            labels=labels,
            least=min(value for _, value in points),
            mean=_mean(points),
            most=max(value for _, value in points),
            scrapes=len(points),
        )
        for labels, points in sorted(series.items())
    )


def _mean(points: Sequence[tuple[float, float]]) -> float:
    """Trapezoids over time."""
    area = math.fsum(
        (later_s - earlier_s) * (earlier + later) / 2.0
        for (earlier_s, earlier), (later_s, later) in itertools.pairwise(points)
    )
    span_s = points[-1][0] - points[0][0]
    return area / span_s if span_s > 0.0 else math.fsum(value for _, value in points) / len(points)


def _histogram(name: str, family: Family, snapshots: Sequence[Snapshot], restarted: bool) -> HistogramDelta:
    gained = _gained(name, snapshots, restarted)
    series = _series(name, snapshots)
    # sums of negative observations fall, and are no sign of a restart
    if any((restarted or _falls(series[key])) and not key[0].endswith("_sum") for key in gained):
        return HistogramDelta(count=None, sum=None, problem="it began again within the window")
    known = {key: math.nan if value is None else value for key, value in gained.items()}
    return histogram_delta(family, known, name)


def _raw(name: str, first: Snapshot, last: Snapshot) -> list[RawSeries]:
    begin, end = _values(name, first), _values(name, last)
    return [
        RawSeries(sample, labels, _finite(begin.get((sample, labels))), _finite(end.get((sample, labels))))
        for sample, labels in sorted(begin.keys() | end.keys())
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
