"""Seconds that a server's requests spent in its stages within a window, by its own metrics: sums, so that windows add up."""

import math
from collections.abc import Sequence

import msgspec

from netgain.ledger.stage import Stage
from netgain.measuring.observe.names import MEANINGS, Engine
from netgain.measuring.observe.window import ServerWindow

_HISTOGRAMS = {Stage.QUEUED: "queue", Stage.PREFILL: "prefill", Stage.DECODE: "decode"}
# llama.cpp counts seconds of all requests together, and no requests
_COUNTERS = {Stage.PREFILL: "llamacpp:prompt_seconds_total", Stage.DECODE: "llamacpp:tokens_predicted_seconds_total"}


class StageSum(msgspec.Struct, frozen=True):
    """`requests`: of how many, by the server; None: it does not tell."""

    seconds: float
    requests: float | None


def stage_sums(window: ServerWindow | None, engine: Engine | None) -> dict[Stage, StageSum]:
    """What the engine tells, and nothing of what it does not; netgain's stages come with each answer instead."""
    if window is None or engine is None or window.restarts:
        return {}
    found: dict[Stage, StageSum] = {}
    for stage, meaning in _HISTOGRAMS.items():
        for name in MEANINGS[meaning].names.get(engine, ()):
            delta = window.histograms.get(name)
            if delta is not None and delta.problem is None and delta.sum is not None and delta.count:
                found[stage] = StageSum(delta.sum, delta.count)
    if engine == "llama.cpp":
        told = {stage: window.gained(name) for stage, name in _COUNTERS.items()}
        found |= {stage: StageSum(seconds, None) for stage, seconds in told.items() if seconds is not None}
    return found


def summed(windows: Sequence[dict[Stage, StageSum]]) -> dict[Stage, StageSum]:
    """Of all windows together, for stages that each told: a sum with a hole is no sum."""
    shared = set.intersection(*(set(window) for window in windows)) if windows else set()
    found = {}
    for stage in (stage for stage in Stage if stage in shared):
        counts = [window[stage].requests for window in windows]
        known = [count for count in counts if count is not None]
        requests = math.fsum(known) if len(known) == len(counts) else None
        found[stage] = StageSum(math.fsum(window[stage].seconds for window in windows), requests)
    return found
