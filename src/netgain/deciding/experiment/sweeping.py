"""A paired experiment over several loads at once: its design, and from its observations one verdict for all of them.

The loads share the starts of the servers and take turns within each, so that neither a start nor the hour is mistaken for
what a load does.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from netgain.deciding.experiment.analyse import Analysis, Terms, analyse, end_to_end
from netgain.deciding.experiment.design import Design, grouped
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL, Observation, pair
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.experiment.rollback import mean_in_flight, rollback_rule
from netgain.deciding.experiment.statistics import Effect, median_effect
from netgain.deciding.experiment.sweep import LoadPoint, Sweep, each_confidence, sweep, tokens_per_s
from netgain.deciding.experiment.verdict import Check, Decision, Verdict, finding, percent
from netgain.errors import UsageError
from netgain.measuring.workload.item import Item

TURNS = 2  # a block holds so many prompts for each place of its load, so that it is mostly full


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """`analysis`: the lowest load's figures under the verdict for all loads. `by_load`: each load judged by itself."""

    sweep: Sweep
    analysis: Analysis
    by_load: dict[int, Analysis]


def sweep_design(
    items: Sequence[Item], loads: Sequence[int], starts: int, groups: int, control_every: int | None
) -> Design:
    """`groups` of prompts per start are shared out over `loads`, in ascending order; each load gets enough of them to decide.

    Raises UsageError when there are too few prompts to keep the highest load busy.
    """
    check_prompts(len(items), loads)
    rounds = max(math.ceil(FEWEST_UNITS / starts), groups // len(loads))
    dealt = {load: grouped(items, starts * rounds, max(2, TURNS * load)) for load in loads}
    found: list[tuple[Item, ...]] = []
    order: list[int] = []
    for start in range(starts):
        for turn in range(rounds):
            shift = (start + turn) % len(loads)
            for load in (*loads[shift:], *loads[:shift]):
                found.append(dealt[load][start * rounds + turn])
                order.append(load)
    return Design(
        groups=tuple(found), concurrency=loads[0], starts=starts, control_every=control_every, loads=tuple(order)
    )


def check_prompts(prompts: int, loads: Sequence[int]) -> None:
    """Raises UsageError when there are too few prompts to keep the highest load busy."""
    if prompts < loads[-1]:
        raise UsageError(
            f"{prompts} prompts cannot keep {loads[-1]} requests in flight; leave that load out, or give a workload with more"
        )


def expected_s(design: Design, request_s: Callable[[int], float]) -> float:
    """How long the measuring takes if a request takes `request_s(load)`."""
    return sum(
        len(design.order(group)) * len(items) * request_s(design.load_of(group)) / design.load_of(group)
        for group, items in enumerate(design.groups)
    )


def analyse_loads(
    observations: Sequence[Observation],
    load_of: Callable[[int], int],
    terms: Terms,
    checks: Sequence[Check] = (),
    predicted: Mapping[int, float | None] | None = None,
) -> Swept:
    """`load_of` gives the load of a group. Each load is judged with an interval so wide that all hold together.

    The comparison of the baseline with a second start of itself is made once, over all loads.
    """
    loads = sorted({load_of(seen.group) for seen in observations})
    if not loads:
        raise UsageError("no load was measured")
    each = msgspec.structs.replace(terms, confidence=each_confidence(len(loads), terms.confidence))
    own = {
        load: [seen for seen in observations if load_of(seen.group) == load and seen.arm in (BASELINE, CANDIDATE)]
        for load in loads
    }
    by_load = {load: analyse(seen, each, checks) for load, seen in own.items()}
    points = [_point(load, own[load], by_load[load], (predicted or {}).get(load)) for load in loads]
    pairs = {load: pair(seen, end_to_end) for load, seen in own.items()}
    found = sweep(points, pairs, terms.confidence, terms.seed)
    first = by_load[loads[0]]
    control = median_effect(pair(observations, end_to_end, BASELINE, CONTROL), terms.seed, terms.confidence)
    verdict = _joint(
        found,
        {load: by_load[load].verdict for load in loads},
        control_shows=_shows(control, terms.minimum_effect),
        promises_identity=terms.promises_identity,
    )
    decided = [load for load in loads if by_load[load].verdict.decision == "adopt"] or loads
    floor = max(
        (one.verdict.noise_floor for one in by_load.values() if one.verdict.noise_floor is not None), default=None
    )
    return Swept(
        sweep=found,
        by_load=by_load,
        analysis=msgspec.structs.replace(
            first,
            control=control,
            verdict=verdict,
            rollback=rollback_rule(
                [own[load] for load in decided],
                floor,
                [guard for load in decided for guard in by_load[load].verdict.guards],
                _most(found),
            ),
        ),
    )


def _point(load: int, seen: Sequence[Observation], found: Analysis, predicted: float | None) -> LoadPoint:
    return LoadPoint(
        concurrency=load,
        in_flight=mean_in_flight(seen, BASELINE),
        effect=found.e2e_median,
        tpot=found.tpot_median,
        ttft=found.ttft_median,
        decision=found.verdict.decision,
        finding=found.verdict.finding,
        reasons=found.verdict.reasons,
        baseline_tokens_per_s=tokens_per_s(seen, BASELINE),
        candidate_tokens_per_s=tokens_per_s(seen, CANDIDATE),
        predicted=predicted,
        slo=found.slo,
    )


def _shows(control: Effect | None, minimum_effect: float) -> str | None:
    """What a control says that shows an effect where there is none."""
    if control is not None and finding(control, math.log1p(minimum_effect)) in ("faster", "slower"):
        return f"the baseline against a second start of itself shows {percent(control.ratio)}: noise exceeds the design"
    return None


def _joint(found: Sweep, by_load: Mapping[int, Verdict], control_shows: str | None, promises_identity: bool) -> Verdict:
    """Adopt where it pays at the lowest loads or at the highest; the range is part of the verdict. A promise of identical
    tokens is broken for good by one load at which it is broken."""
    verdicts = list(by_load.values())
    first = verdicts[0]
    void = [verdict for verdict in verdicts if verdict.void]
    if void or control_shows:
        reasons = void[0].reasons if void else (control_shows or "",)
        return msgspec.structs.replace(
            first,
            decision="inconclusive",
            void=True,
            headline=f"The run proves nothing: {reasons[0]}",
            reasons=reasons,
        )
    for load, verdict in by_load.items():
        if promises_identity and verdict.identity is not None and verdict.identity.differing:
            told = f"at {load} in flight {verdict.reasons[0]}"
            return msgspec.structs.replace(
                first, decision="reject", headline=told, reasons=(told,), identity=verdict.identity, needed=None
            )
    decision: Decision = "inconclusive"
    if found.pays_up_to is not None or found.pays_from is not None:
        decision = "adopt"
    elif any(verdict.decision == "reject" for verdict in verdicts):
        decision = "reject"
    each = tuple(
        f"{point.concurrency} in flight: {'unknown' if point.effect is None else _speedup(point)}, {point.decision}"
        + ("" if point.decision == "adopt" or not point.reasons else f" ({point.reasons[0]})")
        for point in found.points
    )
    return msgspec.structs.replace(
        first,
        decision=decision,
        headline=found.says,
        reasons=(*each, found.crossover_says),
        scope=f"{first.scope}, for the loads tried; intervals hold together at {found.confidence:.0%}",
        needed=None if decision != "inconclusive" else first.needed,
    )


def _speedup(point: LoadPoint) -> str:
    effect = point.effect
    assert effect is not None
    if effect.interval is None:
        return f"{effect.ratio:.2f}x"
    return f"{effect.ratio:.2f}x ({effect.interval[0]:.2f}x to {effect.interval[1]:.2f}x)"


def _most(found: Sweep) -> float | None:
    """The load beyond which to go back: where the sign flips, if that is before the first load at which it was not shown to pay,
    else halfway (in the logarithm) to that load. None where it pays at the highest load tried: that nothing was measured beyond
    is no reason."""
    highest = found.points[-1].concurrency
    if found.pays_up_to is None or found.pays_up_to == highest:
        return None
    crossing = found.crossover
    above = min(point.concurrency for point in found.points if point.concurrency > found.pays_up_to)
    before = crossing is not None and crossing.turn == "ends" and crossing.at < above
    return crossing.at if crossing is not None and before else math.sqrt(found.pays_up_to * above)
