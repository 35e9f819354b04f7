"""From a finished run on two servers to the comparison: judged, with everything that it rests on and cannot show."""

import datetime
import time

import msgspec

from netgain.deciding.compare.cost import devices_of
from netgain.deciding.compare.judging import Way, judge_sides
from netgain.deciding.compare.measured import Measured, Prepared
from netgain.deciding.compare.outcome import Asked, Comparison
from netgain.deciding.compare.planning import Plan
from netgain.deciding.compare.running import LOOPBACK, check_servers
from netgain.deciding.compare.settings import Settings
from netgain.deciding.decide.context import context
from netgain.deciding.decide.sweeping import blocks_of, detailed
from netgain.deciding.experiment.checks import check_trial
from netgain.deciding.experiment.conduct import how_far
from netgain.deciding.experiment.cost import costs_of_blocks
from netgain.deciding.experiment.design import Design
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.experiment.spending import newly_lost
from netgain.deciding.report.by_metrics import with_metrics
from netgain.deciding.report.outcome import arm_report
from netgain.deciding.verdict.handoffs import handoff_costs
from netgain.ledger.stage import Stage
from netgain.measuring.measurement.reference_kernels import reference_kernels
from netgain.measuring.observe.names import known_engine
from netgain.measuring.observe.reading import HOW_TO_READ
from netgain.measuring.observe.stages import StageSum, stage_sums
from netgain.measuring.workload.slo import parse_slo
from netgain.wording import count

ADVICE_OF_STARTS = "the full form (without --quick) or more --starts, while nothing else uses the servers' machine"
ADVICE = (
    "the same command with more prompts (without --quick, or with a longer --workload) while nothing else uses the servers or "
    "their machine"
)


def conclude(settings: Settings, ready: Prepared, planned: Plan, measured: Measured, began_s: float) -> Comparison:
    """`began_s`: monotonic seconds when the comparison began."""
    trial = measured.trial
    design = planned.design
    stopped = (f"interrupted after {how_far(trial, design)}",) if trial.stopped else ()
    asked = {name: _tokens_from(measured, measured.urls[name]) for name in measured.watched}
    checks = check_trial(trial, same_cache=False, went_on=not settings.started)
    if measured.watched:
        checks += check_servers(measured.watched, asked)
    way = Way(
        advice=ADVICE_OF_STARTS if len(settings.started) == 2 else ADVICE,
        doubts=tuple(f"the run was {told}, by somebody who could see how it went" for told in stopped),
        greedy=all(item.temperature == 0.0 for item in design.items),
        quality=measured.quality,
        load_of=design.load_of if design.loads else None,
    )
    shown = detailed(trial.observations, design)
    blocks = blocks_of(trial.blocks, shown)
    handoffs, handoffs_unknown = handoff_costs(measured.handoffs)
    judged = judge_sides(trial.observations, checks, ready.ruling, settings, way)
    analysis, arms = with_metrics(
        judged.analysis,
        [
            arm_report(name, command, shown, blocks, measured.resident[name])
            for name, command in measured.commands.items()
        ],
        trial.fresh,
        {} if design.loads else _stages(measured),  # of several loads together they would be of none
    )
    return Comparison(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=time.monotonic() - began_s,
        kind=settings.kind,
        same_server=settings.same_server,
        paired=True,
        asked=_asked(settings, ready, design),
        sides={
            name: msgspec.structs.replace(one.side, figures=measured.figures.get(name, {}), notes=ready.met[name].notes)
            for name, one in ready.known.items()
        },
        fields=ready.ruling.rows,
        overrides={row.field: row.reason for row in ready.ruling.rows if row.reason is not None},
        analysis=analysis,
        scaling=judged.scaling,
        lengths=judged.lengths,
        arms=arms,
        blocks=trial.blocks,
        counted=trial.counted,
        handoffs=handoffs,
        handoffs_unknown=handoffs_unknown,
        cost=None
        if settings.price is None
        else costs_of_blocks(
            settings.price,
            devices_of(ready.ruling.rows),
            shown,
            blocks,
            None if settings.slo is None else parse_slo(settings.slo),
        ),
        cache_state=_cache_state(ready, design),
        caveats=(
            *(f"The run was {told}." for told in stopped),
            *ready.ruling.caveats,
            *judged.caveats,
            *measured.caveats,
            *_caveats(ready, design),
        ),
        cannot_show=(
            *ready.workload.notes,
            *planned.lost,
            *newly_lost(planned.budget, measured.budget),
            *_cannot_show(settings, design),
        ),
        context=context(),
        quality=judged.quality,
        lossy=judged.lossy,
        grown=measured.grown,
        stopped="interrupted" if trial.stopped else None,
        budget=measured.budget,
        sweep=judged.sweep,
    )


def _cache_state(ready: Prepared, design: Design) -> str:
    if design.mirrored and ready.salted:
        return "every block asks under a cache salt of its own"
    if design.mirrored:
        return "; ".join(f"{name}: {cold.says}" for name, cold in ready.cold.items())
    return "not controlled: each prompt is sent to each server once"


def _tokens_from(measured: Measured, url: str) -> int | None:
    """Output tokens that this client got from one server, by whatever arms, since its counters are read; None where a count is
    unknown."""
    of = {name for name, other in measured.urls.items() if other == url}
    counts = [seen.record.output_tokens for seen in measured.trial.fresh if seen.arm in of and seen.record.ok]
    return None if None in counts else sum(number or 0 for number in counts)


def _asked(settings: Settings, ready: Prepared, design: Design) -> Asked:
    return Asked(
        workload=ready.workload.name,
        workload_digest=ready.workload.digest,
        prompts=len({item.id for item in design.items}),
        load=f"closed loop, {settings.in_flight}"
        if settings.rate_per_s is None
        else f"open loop, {settings.rate_per_s:g} requests per second (Poisson)",
        concurrency=settings.concurrency if settings.rate_per_s is None else None,
        rate_per_s=settings.rate_per_s,
        output_tokens_at_most=settings.form.output_tokens,
        ignore_eos=settings.ignore_eos,
        temperature=settings.temperature,
        seed=settings.seed,
        slo=settings.slo,
        minimum_effect=settings.minimum_effect,
        promises_identity=settings.promises_identity,
        form="quick" if settings.quick else "full",
        loads=settings.loads,
    )


def _stages(measured: Measured) -> dict[str, dict[Stage, StageSum]]:
    """By the metrics of started and of running servers; nothing where both arms are one server."""
    if measured.urls[BASELINE] == measured.urls[CANDIDATE]:
        return {}
    running = {
        name: stage_sums(seen.window, seen.engine) for name, seen in measured.watched.items() if seen is not None
    }
    return measured.trial.stages | running


def _caveats(ready: Prepared, design: Design) -> tuple[str, ...]:
    said = [f"{name}: {note}" for name, one in ready.met.items() for note in one.notes]
    said += [
        f"{name}: {told}"
        for name, one in ready.met.items()
        if (told := reference_kernels(one.server.engine, one.server.said)) is not None
    ]
    hosts = {one.base.partition("://")[2].rpartition(":")[0].strip("[]") for one in ready.met.values()}
    if hosts & set(LOOPBACK):
        said.append(
            "Client and servers share a machine: what the idle server and the client use is taken from the loaded one (see the "
            "checks)."
        )
    said += [f"{name}: {cold.caveat}" for name, cold in ready.cold.items() if cold.caveat is not None]
    if not design.mirrored:
        said.append(
            "At least one server knows no cache salts and was not reset, so nothing sets what the prefix caches hold: each "
            "prompt was sent to each server once, and what an earlier run left there may be found by either."
        )
        if _repeats_a_prompt(design):
            said.append(
                "There were too few prompts to send each only once, so later groups may have found KV of earlier ones."
            )
    sources = {one.server.engine for one in ready.met.values()}
    if len(sources) > 1:
        said.append("The engines differ, so defaults that were not set (batching, caching, sampling) differ with them.")
    known = {engine for source in sources if (engine := known_engine(source)) is not None}
    return (*said, *(HOW_TO_READ[engine] for engine in sorted(known & HOW_TO_READ.keys())))


def _repeats_a_prompt(design: Design) -> bool:
    """Whether a prompt is sent twice to one start of a server."""
    sent = [(design.start_of(group), item.id) for group, items in enumerate(design.groups) for item in items]
    return len(sent) > len(set(sent))


def _cannot_show(settings: Settings, design: Design) -> tuple[str, ...]:
    said = []
    if design.fewest.starts < FEWEST_UNITS:
        said.append(
            "Other starts of these servers: each was measured as it runs now, and another start may be faster or slower by some "
            "percent."
            if design.starts == 1
            else f"Differences between server starts: each arm was started {count(design.starts, 'time')}, so the verdict holds "
            "within these starts."
        )
    said += [
        f"Other loads: {settings.in_flight}, the next sent when one ends (closed loop). Queueing "
        "at a given arrival rate is not shown."
        if settings.rate_per_s is None
        else f"Other loads, and long queues: {settings.rate_per_s:g} requests per second, in blocks of "
        f"{count(len(design.groups[0]), 'request')} that each begin with nothing in flight. A server that cannot keep up with "
        "the rate would be slower still in a longer block.",
        "Warm prefix caches: " + ("each block began cold." if design.mirrored else "each prompt was new in this run."),
    ]
    if settings.quick and settings.form.output_tokens is not None:
        said.append(f"Long outputs: they were cut at {count(settings.form.output_tokens, 'token')}.")
    prompts = len({item.id for item in design.items})
    if prompts < 100:
        said.append(
            f"Rare events: {count(prompts, 'prompt')} cannot show a p99 of requests; tails are those of these prompts."
        )
    return tuple(said)
