"""Does a deployed service still keep its verdict? One window of its counters against the rollback rule. Pure."""

import itertools
import math
from typing import Literal

import msgspec

from netgain.deciding.experiment.rollback import Rollback, TailLimit
from netgain.deciding.guard.sources import gaps_are_steps, histogram_names, pace_source, tried
from netgain.measuring.observe.histogram import HistogramDelta
from netgain.measuring.observe.names import MEANINGS, Engine
from netgain.measuring.observe.window import ServerWindow

State = Literal["holds", "rollback", "cannot tell"]
LOAD_SLACK = 1.25  # a load so much above the highest measured is still taken for that load
LOAD_ROOM = 0.5  # requests: at one in flight, arrivals overlap a little


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a window of a service's counters says. `requests` ended and `tokens` were put out; None: not told.

    `in_flight` is a mean over the window: by Little's law from ended requests, else from the gauge of running ones.
    `unlike`: metrics whose histogram is not of what the client measured, and why; they are not among `tails`.
    """

    engine: Engine
    seconds: float
    requests: float | None
    tokens: float | None
    pace_s: float | None
    pace_missing: str | None
    differs: str | None
    in_flight: float | None
    tails: dict[str, HistogramDelta]
    unlike: dict[str, str] = msgspec.field(default_factory=dict)

    def full(self, rule: Rollback) -> bool:
        """Whether the window is long enough to be judged."""
        if self.requests is not None:
            return self.requests >= rule.window_requests
        wanted = rule.window_tokens
        return wanted is not None and self.tokens is not None and self.tokens >= wanted

    def progress(self, rule: Rollback) -> str:
        """How much of the window there is, in words."""
        if self.requests is not None:
            return f"{self.requests:.0f} of {rule.window_requests} requests"
        if rule.window_tokens is None or self.tokens is None:
            return "its requests are not counted"
        return f"{self.tokens:.0f} of {rule.window_tokens} tokens"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The state and the sentences for it; `pace_s` against `threshold_s` where both are known."""

    state: State
    says: tuple[str, ...]
    pace_s: float | None = None
    threshold_s: float | None = None


def read(window: ServerWindow, engine: Engine) -> Reading:
    """Take from a window what the rule asks."""
    source = pace_source(engine, window)
    pace = None if source is None else source.of(window)
    missing = None
    if source is None:
        missing = f"the metrics have no {tried(engine)}"
    elif pace is None:
        missing = "no output token was counted"
    seconds = window.ended_s - window.began_s
    ended = _find(window, engine, "e2e")
    in_flight = None
    if ended is not None and ended.sum is not None and seconds > 0.0:
        in_flight = ended.sum / seconds
    elif window.scrapes > 2:
        in_flight = _gauge(window, engine)
    unlike = (
        {"itl": "the engine counts a step once, however many drafts it commits"}
        if gaps_are_steps(engine, window)
        else {}
    )
    return Reading(
        engine=engine,
        seconds=seconds,
        requests=None if ended is None else ended.count,
        tokens=_gained(window, engine, "output_tokens"),
        pace_s=pace,
        pace_missing=missing,
        differs=None if source is None else source.differs,
        in_flight=in_flight,
        tails={
            metric: found
            for metric in ("ttft", "itl", "e2e")
            if metric not in unlike and (found := _find(window, engine, metric)) is not None
        },
        unlike=unlike,
    )


def examine(rule: Rollback, reading: Reading) -> Finding:
    """Judge a full window. Order: more load than it was shown to pay at, then the pace, then tails; what is unknown is said."""
    against: list[str] = []
    unknown: list[str] = []
    told: list[str] = []
    load, most = reading.in_flight, rule.most_in_flight
    if most is not None and load is not None and load > most:
        against.append(f"{load:.1f} requests were in flight on average, and it was shown to pay only up to {most:.3g}")
    threshold = threshold_at(rule, load)
    if reading.pace_s is None:
        unknown.append(f"the time per output token is not known: {reading.pace_missing}")
    else:
        figures = f"{reading.pace_s * 1e3:.2f} ms per output token, the threshold is {threshold * 1e3:.2f} ms"
        if reading.pace_s <= threshold:
            told.append(figures)
        elif beyond(rule, load):
            unknown.append(
                f"{figures}, but {load:.1f} requests were in flight, more than the {rule.paces[-1].in_flight:.3g} at which the "
                "verdict was measured, where the baseline would be slower too"
            )
        else:
            against.append(figures)
    for tail in rule.tails:
        name = f"p{tail.share * 100:g} of {tail.metric}"
        if tail.metric not in reading.tails:
            why = reading.unlike.get(tail.metric, "the service has no histogram of it")
            told.append(f"{name} is not watched: {why}")
            continue
        judged = exceeds(tail, reading.tails[tail.metric])
        if judged is None:
            told.append(f"{name} cannot be told from its histogram")
        elif judged:
            against.append(f"the {name} is above {tail.limit_s * 1e3:.4g} ms")
    state: State = "rollback" if against else "cannot tell" if unknown else "holds"
    return Finding(state=state, says=(*against, *unknown, *told), pace_s=reading.pace_s, threshold_s=threshold)


def threshold_at(rule: Rollback, in_flight: float | None) -> float:
    """Between two measured loads in proportion, beyond them that of the nearest; the highest where the load is unknown."""
    paces = rule.paces
    if in_flight is None:
        return max(pace.threshold_s for pace in paces)
    if in_flight <= paces[0].in_flight:
        return paces[0].threshold_s
    for before, after in itertools.pairwise(paces):
        if in_flight <= after.in_flight:
            share = (in_flight - before.in_flight) / (after.in_flight - before.in_flight)
            return before.threshold_s + share * (after.threshold_s - before.threshold_s)
    return paces[-1].threshold_s


def highest_load(rule: Rollback) -> float:
    """The most requests in flight for which the thresholds speak."""
    return rule.paces[-1].in_flight * LOAD_SLACK + LOAD_ROOM


def beyond(rule: Rollback, in_flight: float | None) -> bool:
    return in_flight is not None and in_flight > highest_load(rule)


def exceeds(tail: TailLimit, found: HistogramDelta | None) -> bool | None:
    """Whether the quantile lies above its limit for certain: above the first bucket's bound that is at least the limit.

    None: no such bound, no observations, or a histogram that contradicts itself.
    """
    if found is None or found.problem is not None or not found.count:
        return None
    bound, within = next(((bound, within) for bound, within in found.buckets if bound >= tail.limit_s), (math.inf, 0.0))
    return None if math.isinf(bound) else within < tail.share * found.count


def _find(window: ServerWindow, engine: Engine, metric: str) -> HistogramDelta | None:
    names = histogram_names(engine, metric)
    return next((window.histograms[name] for name in names if name in window.histograms), None)


def _gained(window: ServerWindow, engine: Engine, meaning: str) -> float | None:
    names = MEANINGS[meaning].names.get(engine, ())
    return next((window.gained(name) for name in names if name in window.counters), None)


def _gauge(window: ServerWindow, engine: Engine) -> float | None:
    for name in MEANINGS["running"].names.get(engine, ()):
        if name in window.gauges:
            return math.fsum(seen.mean for seen in window.gauges[name])
    return None
