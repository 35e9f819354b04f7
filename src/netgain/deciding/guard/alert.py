"""The rollback rule as Prometheus alerting rules, under the engine's own metric names.

A window is a time here, since PromQL knows no window of so many requests; a condition on their number stands beside it.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from netgain.deciding.experiment.rollback import Rollback
from netgain.deciding.guard.rule import highest_load
from netgain.deciding.guard.sources import GAPS_BY_STEP, PACES, PaceSource, histogram_names
from netgain.deciding.verdict.document import VerdictDocument
from netgain.errors import UsageError
from netgain.measuring.observe.names import MEANINGS, Engine

BY = "by (job, instance)"
_WINDOW = re.compile(r"(?=.*[1-9])(?:\d+(?:ms|[smhdwy]))+")


def alert_rules(document: VerdictDocument, engine: Engine, window: str = "10m") -> str:
    """The YAML of a rule file. Raises UsageError when the verdict has no rule, and for a window that PromQL cannot read."""
    if not _WINDOW.fullmatch(window):
        raise UsageError(f"the window {window!r} of the alerts is no duration of PromQL; write it as in 10m or 1h30m")
    rule = document.rollback
    if rule is None or not rule.paces:
        raise UsageError("this verdict has no rule for going back, so there is nothing to alert on")
    source = PACES[engine][0]
    rules = [
        *_paces(rule, source, engine, window),
        *_tails(rule, engine, window),
        *_load(rule, engine, window),
        _blind(source, window),
    ]
    for one in rules:
        one.setdefault("labels", {"severity": "warning", "source": "netgain"})
        one["annotations"]["verdict"] = f"{document.technique.title}: {document.decision}, {document.created}"
    told = (
        f"# netgain guard: {document.technique.title} ({document.decision}, {document.created}) on {engine}\n"
        f"# {rule.says}\n"
        f"# The verdict's times are the client's. Here: {source.differs}.\n"
        + "".join(
            f"# Not watched: p{tail.share * 100:g} of {tail.metric}, of which {engine} has no histogram.\n"
            for tail in rule.tails
            if not histogram_names(engine, tail.metric)
        )
    )
    body = yaml.safe_dump({"groups": [{"name": "netgain-guard", "rules": rules}]}, sort_keys=False, width=120)
    return told + body


def _paces(rule: Rollback, source: PaceSource, engine: Engine, window: str) -> list[dict[str, Any]]:
    """One alert per load that was measured; each speaks for the loads that are nearest to its own."""
    spent = _rate(source.seconds.series, window)
    tokens = _rate(source.tokens.series, window)
    if source.less is not None:
        tokens = f"({tokens} - {_rate(source.less.series, window)})"
    pace, load = f"{spent} / {tokens}", _in_flight(engine, window)
    edges = [0.0]
    edges += [(a.in_flight + b.in_flight) / 2.0 for a, b in zip(rule.paces, rule.paces[1:], strict=False)]
    edges.append(highest_load(rule))
    found = []
    for one, above, below in zip(rule.paces, edges, edges[1:], strict=False):
        conditions = [f"({pace}) > {one.threshold_s:.6g}", f"({load}) <= {below:.6g}"]
        if above:
            conditions.append(f"({load}) > {above:.6g}")
        ended = histogram_names(engine, "e2e")
        if ended:
            conditions.append(f"sum {BY} (increase({ended[0]}_count[{window}])) >= {rule.window_requests}")
        elif rule.window_tokens is not None:
            conditions.append(f"sum {BY} (increase({source.tokens.series}[{window}])) >= {rule.window_tokens}")
        says = f"more than {one.threshold_s * 1e3:.2f} ms per output token at about {one.in_flight:.3g} in flight"
        found.append(
            {
                "alert": "NetgainRollbackPace",
                "expr": " and ".join(conditions),
                "annotations": {"summary": f"Go back: {says}; the baseline took {one.baseline_s * 1e3:.2f} ms"},
            }
        )
    return found


def _tails(rule: Rollback, engine: Engine, window: str) -> list[dict[str, Any]]:
    found = []
    for tail in rule.tails:
        names = histogram_names(engine, tail.metric)
        if not names:
            continue
        buckets = f"sum by (le, job, instance) (rate({names[0]}_bucket[{window}]))"
        unlike = _unless_speculating(engine, window) if tail.metric == "itl" else ""
        found.append(
            {
                "alert": "NetgainRollbackTail",
                "expr": f"histogram_quantile({tail.share:g}, {buckets}) > {tail.limit_s:.6g}{unlike}",
                "for": window,
                "annotations": {
                    "summary": f"Go back: p{tail.share * 100:g} of {tail.metric} above {tail.limit_s * 1e3:.4g} ms ({tail.basis})"
                },
            }
        )
    return found


def _unless_speculating(engine: Engine, window: str) -> str:
    """Where the engine's gaps are of steps, they are of tokens only while no drafts are verified."""
    counter = GAPS_BY_STEP.get(engine)
    return "" if counter is None else f" unless on (job, instance) sum {BY} (increase({counter}[{window}])) > 0"


def _load(rule: Rollback, engine: Engine, window: str) -> list[dict[str, Any]]:
    if rule.most_in_flight is None:
        return []
    says = f"more than {rule.most_in_flight:.3g} requests in flight, where it was not shown to pay"
    return [
        {
            "alert": "NetgainRollbackLoad",
            "expr": f"({_in_flight(engine, window)}) > {rule.most_in_flight:.6g}",
            "for": window,
            "annotations": {"summary": f"Go back: {says}"},
        }
    ]


def _blind(source: PaceSource, window: str) -> dict[str, Any]:
    """No metrics is not "fine"."""
    return {
        "alert": "NetgainGuardBlind",
        "expr": f"absent({source.tokens.series})",
        "for": window,
        "annotations": {
            "summary": f"Nobody knows whether the verdict still holds: {source.tokens.series} is not there"
        },
    }


def _rate(series: str, window: str) -> str:
    return f"sum {BY} (rate({series}[{window}]))"


def _in_flight(engine: Engine, window: str) -> str:
    """Requests in flight on average: by Little's law where ended requests are timed, else the mean of the gauge."""
    ended = histogram_names(engine, "e2e")
    if ended:
        return _rate(f"{ended[0]}_sum", window)
    gauges: Mapping[Engine, tuple[str, ...]] = MEANINGS["running"].names
    return f"sum {BY} (avg_over_time({gauges[engine][0]}[{window}]))"
