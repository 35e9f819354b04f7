"""What passing work from one part of a server to another cost it within a window, by the server's own counters. netgain has them
of every kind (ledger/prometheus.py); of vLLM and llama.cpp the counters of drafts are the same for one kind."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from netgain.measuring.observe.names import MEANINGS, Engine
from netgain.measuring.observe.window import ServerWindow

FIGURES: Mapping[str, str] = {
    "netgain_handoffs_total": "handoffs",
    "netgain_handoffs_failed_total": "failed",
    "netgain_handoff_bytes_total": "bytes",
    "netgain_handoff_used_tokens_total": "used_tokens",
    "netgain_handoff_wasted_tokens_total": "wasted_tokens",
    "netgain_handoff_wasted_bytes_total": "wasted_bytes",
    "netgain_handoff_waited_seconds_total": "waited_s",
    "netgain_handoff_busy_seconds_total": "busy_s",
    "netgain_handoff_hidden_seconds_total": "hidden_s",
}

DRAFTS = "draft_verify"


class Handoffs(msgspec.Struct, frozen=True, kw_only=True):
    """Of one server, by kind and figure; empty: none happened. `unknown`: why nothing is known (None: it is)."""

    kinds: dict[str, dict[str, float]] = {}
    unknown: str | None = None


def handoffs(window: ServerWindow | None, engine: Engine | None) -> Handoffs:
    """`window` None: the metrics could not be read at both ends."""
    if engine not in (None, "netgain"):
        return _of_drafts(window, engine)
    if window is None:
        return Handoffs(unknown="its metrics could not be read")
    if engine is None:
        return Handoffs(unknown="this engine tells no handoffs")
    kinds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, figure in FIGURES.items():
        for delta in window.counters.get(name, ()):
            if delta.gained is None:
                return Handoffs(unknown="the server began again in the middle, and its counters with it")
            kinds[dict(delta.labels).get("kind", "unknown")][figure].append(delta.gained)
    if window.restarts:
        return Handoffs(unknown="the server began again in the middle, and its counters with it")
    sums = {
        kind: {figure: math.fsum(gained) for figure, gained in found.items()} for kind, found in sorted(kinds.items())
    }
    return Handoffs(kinds={kind: found for kind, found in sums.items() if found.get("handoffs")})


def _of_drafts(window: ServerWindow | None, engine: Engine) -> Handoffs:
    """What an engine's counters of speculation tell: how many drafts were handed over, and what of them was used. Not what that
    took, nor anything of other kinds."""
    steps, drafted, accepted = (
        _gained(window, engine, name) for name in ("draft_steps", "drafted_tokens", "accepted_tokens")
    )
    if not drafted or accepted is None:
        return Handoffs(unknown=f"{engine} tells no handoffs but of drafts, and counted none")
    figures = {"used_tokens": accepted, "wasted_tokens": drafted - accepted}
    return Handoffs(kinds={DRAFTS: figures if steps is None else {"handoffs": steps, **figures}})


def _gained(window: ServerWindow | None, engine: Engine, meaning: str) -> float | None:
    names = MEANINGS[meaning].names.get(engine, ())
    found = () if window is None or window.restarts else (window.gained(name) for name in names)
    return next((value for value in found if value is not None), None)


def together(parts: Iterable[Handoffs]) -> Handoffs:
    """Those of several windows. What is unknown of one is unknown of all: a sum with a hole is no sum."""
    kinds: dict[str, dict[str, float]] = {}
    told = list(parts)
    if not told:
        return Handoffs(unknown="its metrics were not read")
    for part in told:
        if part.unknown is not None:
            return Handoffs(unknown=part.unknown)
        for kind, figures in part.kinds.items():
            before = kinds.get(kind)
            kinds[kind] = dict(figures) if before is None else _sum(before, figures)
    return Handoffs(kinds=dict(sorted(kinds.items())))


def _sum(before: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Of the figures that both have."""
    return {figure: value + more[figure] for figure, value in before.items() if figure in more}
