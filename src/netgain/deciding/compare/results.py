"""Compares results that were measured before, with what that cannot exclude: whatever changed between the two measurements."""

import datetime
import itertools
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from netgain.deciding.compare.cost import costs_of_results, devices_of
from netgain.deciding.compare.handoffs import kept_handoffs
from netgain.deciding.compare.judging import Way, judge_sides
from netgain.deciding.compare.loading import Loaded, load
from netgain.deciding.compare.outcome import Asked, Comparison, Side
from netgain.deciding.compare.pairing import Paired, observe
from netgain.deciding.compare.rule import Row, State, overrides_of, rule
from netgain.deciding.compare.settings import Settings
from netgain.deciding.compare.told import from_result, told_traits
from netgain.deciding.compare.traits import FIELDS, Trait, declared, joined
from netgain.deciding.decide.context import context
from netgain.deciding.experiment.arms.settings_told import all_settings
from netgain.deciding.experiment.checks import check_baseline
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.experiment.verdict import Check
from netgain.deciding.report.outcome import ArmReport, arm_report
from netgain.deciding.verdict.handoffs import handoff_costs
from netgain.errors import UsageError
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.measurement.reference_kernels import reference_kernels
from netgain.measuring.workload.slo import parse_slo
from netgain.wording import count

ADVICE = (
    "compare the running servers (--baseline URL --candidate URL), which takes drift out; or measure each side several times in "
    "turns and name all results"
)
COMPARED = tuple(name for name in FIELDS if name != "time")


def compare_results(settings: Settings, narrator: Narrator) -> Comparison:
    """Raises UsageError for what cannot be read or compared."""
    began_s = time.monotonic()
    narrator.phase("reading the results")
    overrides = overrides_of(settings.overrides)
    sides = {BASELINE: load(settings.baseline.sources), CANDIDATE: load(settings.candidate.sources)}
    _check_apart(sides[BASELINE], sides[CANDIDATE])
    traits = {
        name: joined(
            _traits(name, sides[name]), declared(asked.declared, name), name, f"the result {sides[name][0].path}"
        )
        for name, asked in ((BASELINE, settings.baseline), (CANDIDATE, settings.candidate))
    }
    ruling = rule(traits[BASELINE], traits[CANDIDATE], settings.kind, overrides, COMPARED)
    seen = observe(sides[BASELINE], sides[CANDIDATE])
    timing = _timing(sides[BASELINE], sides[CANDIDATE], overrides.get("time"))
    narrator.phase("judging")
    way = Way(
        advice=ADVICE,
        paired=seen.paired,
        doubts=() if timing.state in ("equal", "overridden") else (_drift(timing),),
        scope=_scope(sides, seen),
        rates={name: tuple(one.measurement.summary.output_tokens_per_s for one in own) for name, own in sides.items()},
    )
    judged = judge_sides(seen.observations, _checks(sides, seen.observations), ruling, settings, way)
    handoffs, handoffs_unknown = handoff_costs(kept_handoffs(sides))
    first = sides[BASELINE][0].measurement
    return Comparison(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=time.monotonic() - began_s,
        kind=settings.kind,
        same_server=False,
        paired=seen.paired,
        asked=Asked(
            workload=first.prompts.name,
            workload_digest=first.prompts.digest,
            prompts=len({observation.record.item_id for observation in seen.observations}),
            load=first.load.text,
            concurrency=first.load.concurrency,
            output_tokens_at_most=first.load.max_tokens,
            ignore_eos=False,
            temperature=first.load.temperature,
            seed=settings.seed,
            slo=settings.slo,
            minimum_effect=settings.minimum_effect,
            promises_identity=settings.promises_identity,
            form="results",
        ),
        sides={name: _side(own) for name, own in sides.items()},
        fields=(*ruling.rows, timing),
        overrides={row.field: row.reason for row in (*ruling.rows, timing) if row.reason is not None},
        analysis=judged.analysis,
        scaling=judged.scaling,
        lengths=judged.lengths,
        lossy=judged.lossy,
        arms=tuple(_arm(name, own, seen) for name, own in sides.items()),
        blocks=(),
        cache_state=None,
        caveats=(*ruling.caveats, *judged.caveats, *_caveats(sides, seen, timing)),
        cannot_show=(
            "Whatever else changed between the measurements: other work on the machine, versions, temperature, network.",
        ),
        context=context(),
        handoffs=handoffs,
        handoffs_unknown=handoffs_unknown,
        cost=None
        if settings.price is None
        else costs_of_results(
            settings.price,
            devices_of(ruling.rows),
            sides,
            None if settings.slo is None else parse_slo(settings.slo),
        ),
    )


def _check_apart(baseline: Sequence[Loaded], candidate: Sequence[Loaded]) -> None:
    shared = {one.path.resolve() for one in baseline} & {one.path.resolve() for one in candidate}
    if shared:
        raise UsageError(f"the result {min(shared)} is named on both sides; name another for one of them")


def _traits(name: str, side: Sequence[Loaded]) -> dict[str, Trait]:
    """Of all results of a side, which must agree; what one of them does not tell is not known. Raises UsageError."""
    found: dict[str, Trait] = {}
    told: Counter[str] = Counter()
    for one in side:
        measurement = one.measurement
        own = from_result(told_traits(measurement.server))
        if measurement.prompts.digest is not None:
            own["workload"] = Trait(measurement.prompts.digest, "result")
        if measurement.load.kind != "unknown":
            own["load"] = Trait(measurement.load.text, "result")
        for field, trait in own.items():
            if field in found and found[field].value != trait.value:
                raise UsageError(
                    f"the results of the {name} differ in {field} ({found[field].value} in {side[0].path}, {trait.value} in "
                    f"{one.path}): they are no repeats of one side"
                )
            found[field] = trait
            told[field] += 1
    return {field: trait for field, trait in found.items() if told[field] == len(side)}


def _timing(baseline: Sequence[Loaded], candidate: Sequence[Loaded], reason: str | None) -> Row:
    """Were both sides measured in turns? Their order of time changes sides at least as often as a side has results."""
    marked = [(one.span_s, name) for name, side in ((BASELINE, baseline), (CANDIDATE, candidate)) for one in side]
    known = sorted((span[0], span[1], name) for span, name in marked if span is not None)
    if len(known) < len(marked):
        return _time_row(None, None, "overridden" if reason else "unknown", reason)
    sides = [name for _, _, name in known]
    switches = sum(earlier != later for earlier, later in itertools.pairwise(sides))
    least = min(len(baseline), len(candidate))
    if least > 1 and switches >= least:
        return _time_row("in turns", "in turns", "equal", None)
    began = {name: min(at for at, _, side in known if side == name) for name in (BASELINE, CANDIDATE)}
    shown = [
        datetime.datetime.fromtimestamp(began[name], datetime.UTC).isoformat(timespec="seconds")
        for name in (BASELINE, CANDIDATE)
    ]
    return _time_row(shown[0], shown[1], "overridden" if reason else "differs", reason)


def _time_row(before: str | None, after: str | None, state: State, reason: str | None) -> Row:
    source = None if before is None else "result"
    return Row(
        field="time",
        baseline=before,
        candidate=after,
        baseline_from=source,
        candidate_from=source,
        state=state,
        reason=reason,
    )


def _drift(timing: Row) -> str:
    when = (
        "when they were measured is not known" if timing.state == "unknown" else "they were measured at different times"
    )
    return (
        f"{when}, so a drift of the machine or the network between the two cannot be told from the effect: measure in turns, "
        'compare the running servers, or accept it with --override time="REASON"'
    )


def _scope(sides: dict[str, tuple[Loaded, ...]], seen: Paired) -> str:
    runs = min(len(side) for side in sides.values())
    if runs >= FEWEST_UNITS:
        return f"across measurements ({runs} of each side)"
    what = "these two measurements" if runs == 1 else f"these measurements ({runs} of each side)"
    how = "" if seen.paired else ", prompts not paired"
    return f"within {what}{how}: another measurement of the same servers may differ by more"


def _checks(sides: dict[str, tuple[Loaded, ...]], observations: Sequence[Observation]) -> tuple[Check, ...]:
    void = [f"{one.path}: {why}" for side in sides.values() for one in side if (why := one.measurement.summary.void)]
    restarted = [
        f"{one.path}: {change}" for side in sides.values() for one in side for change in one.measurement.restarts or ()
    ]
    blind = any(one.measurement.restarts is None for side in sides.values() for one in side)
    return (
        *check_baseline(observations),
        Check(
            name="client",
            ok=not void,
            value=float(len(void)),
            limit=0.0,
            says=f"the client was the bottleneck ({'; '.join(void)})" if void else "no measurement was void",
        ),
        Check(
            name="restarts",
            ok=False if restarted else None if blind else True,
            value=float(len(restarted)),
            limit=0.0,
            says=f"a server began again within a measurement ({'; '.join(restarted)})"
            if restarted
            else "not every result tells whether its server began again"
            if blind
            else "no server began again within a measurement",
        ),
    )


def _side(own: Sequence[Loaded]) -> Side:
    measurement = own[0].measurement
    server = measurement.server
    return Side(
        where=tuple(str(one.path) for one in own),
        model=server.model,
        engine=server.engine,
        version=server.version,
        told={
            "measured by": f"{measurement.source.tool} {measurement.source.version or ''}".strip(),
            **all_settings(server, None),
        },
        notes=tuple(dict.fromkeys(caveat for one in own for caveat in one.measurement.caveats)),
    )


def _arm(name: str, own: Sequence[Loaded], seen: Paired) -> ArmReport:
    rates = [one.measurement.summary.output_tokens_per_s for one in own]
    known = [rate for rate in rates if rate is not None]
    report = arm_report(name, (), seen.observations, (), None)
    return msgspec.structs.replace(report, tokens_per_s=sum(known) / len(known) if len(known) == len(rates) else None)


def _caveats(sides: dict[str, tuple[Loaded, ...]], seen: Paired, timing: Row) -> list[str]:
    said = []
    if timing.state == "overridden":
        said.append(
            f"Drift between the measurements was not excluded; accepted by an override, with the reason: {timing.reason}"
        )
    elif timing.state != "equal":
        said.append("Drift between the measurements cannot be excluded: the sides were not measured in turns.")
    if not seen.paired:
        said.append(
            "Prompts are not paired (a result does not tell them, or both sent others), so the spread between prompts is in the "
            "interval, and prompts that were easier on one side look like an effect of it."
        )
    if seen.unmatched:
        said.append(
            f"{count(seen.unmatched, 'request')} had a prompt that the other side never sent, and were left out."
        )
    tools = {one.measurement.source.tool for side in sides.values() for one in side}
    if len(tools) > 1:
        said.append(f"Measured by different tools ({', '.join(sorted(tools))}), which define latencies differently.")
    for name, side in sides.items():
        servers = [one.measurement.server for one in side]
        told = dict.fromkeys(reference_kernels(server.engine, server.said) for server in servers)
        said += [f"{name}: {one}" for one in told if one is not None]
    unsalted = [name for name, side in sides.items() if not all(one.measurement.load.salted for one in side)]
    if unsalted:
        said.append(
            f"Of the {' and '.join(unsalted)} it is not known that prompts found no KV of earlier ones: prefix caches may differ."
        )
    return said
