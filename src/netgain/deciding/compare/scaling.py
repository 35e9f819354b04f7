"""What more devices bring: throughput against throughput per device, never a verdict that one side is better.

Time per request can fall, stay or rise while more devices serve more of them, so throughput and latency are told apart.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from netgain.deciding.compare.rule import Ruling
from netgain.deciding.compare.traits import Value
from netgain.deciding.experiment.analyse import Analysis
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation, pair_values
from netgain.deciding.experiment.statistics import Effect, median_effect
from netgain.deciding.experiment.unpaired import Samples, median_effect_apart
from netgain.deciding.experiment.verdict import Verdict


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate has `factor` times the baseline's `per` (devices or threads).

    `throughput` is candidate / baseline output tokens per second; `efficiency`, with its interval, that over `factor`: 1 is
    linear, below it each device does less than before. `per_unit`: output tokens per second and device of each arm.
    None = not enough data.
    """

    per: str
    factor: float
    units: dict[str, Value | None]
    throughput: Effect | None
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None
    tokens_per_s: dict[str, float | None]
    per_unit: dict[str, float | None]
    says: str


class Throughput(msgspec.Struct, frozen=True):
    """Output tokens per second of each arm, and candidate / baseline (None: no pair of figures)."""

    tokens_per_s: dict[str, float | None]
    effect: Effect | None


def throughput_of_blocks(observations: Sequence[Observation], seed: int) -> Throughput:
    """Of blocks that followed one another: output tokens over the time from a block's first request to its last answer, paired
    by group."""
    blocks = _blocks(observations)
    return Throughput(
        {arm: _total(blocks.get(arm, {})) for arm in (BASELINE, CANDIDATE)}, _effect(blocks, observations, seed)
    )


def throughput_of_results(rates: Mapping[str, Sequence[float | None]], seed: int) -> Throughput:
    """Of whole measurements, each with one figure: parts of one overlap in time. An interval needs several of each side."""
    known = {arm: [rate for rate in rates[arm] if rate] for arm in (BASELINE, CANDIDATE)}
    if any(len(known[arm]) < len(rates[arm]) for arm in known):
        return Throughput(dict.fromkeys(known), None)
    paces = [1.0 / rate for own in known.values() for rate in own]
    starts = [place for place, own in enumerate(known.values()) for _ in own]
    found = Samples(
        starts=np.array(starts, dtype=np.int64),
        groups=np.arange(len(paces), dtype=np.int64),
        values=np.array(paces, dtype=np.float64),
    )
    return Throughput({arm: sum(own) / len(own) for arm, own in known.items()}, median_effect_apart(found, seed))


def scaling(ruling: Ruling, shown: Throughput) -> Scaling:
    """Throughput against throughput per device."""
    assert ruling.per is not None
    assert ruling.factor is not None
    row = next(row for row in ruling.rows if row.field == ruling.per)
    units = {BASELINE: row.baseline, CANDIDATE: row.candidate}
    found, effect = shown.tokens_per_s, shown.effect
    ratio = effect.ratio if effect else None
    if ratio is None and all(found.values()):
        ratio = (found[CANDIDATE] or 0.0) / (found[BASELINE] or 1.0)
    efficiency = None if ratio is None else ratio / ruling.factor
    low = None if effect is None or effect.low is None else effect.low / ruling.factor
    high = None if effect is None or effect.high is None else effect.high / ruling.factor
    return Scaling(
        per=ruling.per,
        factor=ruling.factor,
        units=units,
        throughput=effect,
        efficiency=efficiency,
        efficiency_low=low,
        efficiency_high=high,
        tokens_per_s=found,
        per_unit={
            arm: None if (rate := found[arm]) is None or not isinstance(number, int) else rate / number
            for arm, number in units.items()
        },
        says=_says(ruling, units, ratio, efficiency, low, high),
    )


def never_adopted(analysis: Analysis, result: Scaling) -> Analysis:
    """The same effects, with a verdict that neither adopts nor rejects: the sides are unequal on purpose."""
    found = analysis.verdict
    if found.void:
        return analysis
    breached = tuple(
        f"guard {guard.name} is breached: limit from {guard.basis}"
        for guard in found.guards
        if guard.state == "breached"
    )
    why = "resources differ on purpose, so nothing is adopted or rejected: weigh the throughput against its price"
    verdict: Verdict = msgspec.structs.replace(
        found, decision="inconclusive", headline=result.says, reasons=(found.headline, *breached, why), needed=None
    )
    return msgspec.structs.replace(analysis, verdict=verdict)


def _blocks(observations: Sequence[Observation]) -> dict[str, dict[int, tuple[int, float, float]]]:
    """By arm and block: its group, output tokens and seconds; blocks with an unknown count are left out."""
    seen: dict[tuple[str, int], list[Observation]] = defaultdict(list)
    for observation in observations:
        if observation.arm in (BASELINE, CANDIDATE):
            seen[observation.arm, observation.block].append(observation)
    found: dict[str, dict[int, tuple[int, float, float]]] = defaultdict(dict)
    for (arm, block), own in seen.items():
        counts = [one.record.output_tokens for one in own if one.record.ok]
        seconds = max(one.record.finished_s for one in own) - min(one.record.scheduled_s for one in own)
        if counts and None not in counts and seconds > 0.0:
            found[arm][block] = (own[0].group, float(sum(count or 0 for count in counts)), seconds)
    return found


def _total(blocks: dict[int, tuple[int, float, float]]) -> float | None:
    seconds = sum(length for _, _, length in blocks.values())
    return sum(tokens for _, tokens, _ in blocks.values()) / seconds if seconds > 0.0 else None


def _effect(
    blocks: dict[str, dict[int, tuple[int, float, float]]], observations: Sequence[Observation], seed: int
) -> Effect | None:
    values: dict[str, dict[tuple[int, str], list[float]]] = {BASELINE: defaultdict(list), CANDIDATE: defaultdict(list)}
    for arm, own in blocks.items():
        for group, tokens, seconds in own.values():
            if tokens > 0.0:
                values[arm][group, "throughput"].append(seconds / tokens)
    starts = {seen.group: seen.start for seen in observations}
    return median_effect(pair_values(values[BASELINE], values[CANDIDATE], starts), seed)


def _says(
    ruling: Ruling,
    units: dict[str, Value | None],
    ratio: float | None,
    efficiency: float | None,
    low: float | None,
    high: float | None,
) -> str:
    scaled = f"{units[CANDIDATE]} {ruling.per} against {units[BASELINE]}"
    if ratio is None or efficiency is None or not math.isfinite(ratio):
        return f"With {scaled}, throughput is not known: the servers tell no output tokens"
    interval = "" if low is None or high is None else f" (95 % interval {low:.0%} to {high:.0%})"
    return f"With {scaled}, output tokens per second are {ratio:.2f}x: {efficiency:.0%} of linear{interval}"
