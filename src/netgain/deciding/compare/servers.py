"""Compares two servers: both stay up, one is loaded at a time, in mirrored order per group of prompts; those that are started
here are started again in between."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack

import msgspec

from netgain.deciding.compare.concluding import conclude
from netgain.deciding.compare.handoffs import told_handoffs
from netgain.deciding.compare.measured import Measured, Prepared
from netgain.deciding.compare.meeting import know
from netgain.deciding.compare.outcome import Comparison
from netgain.deciding.compare.planning import Plan, announcement, plan, plan_before
from netgain.deciding.compare.quality import quality_ask
from netgain.deciding.compare.resuming import check_same_servers, check_unused, running_servers
from netgain.deciding.compare.rule import overrides_of, rule
from netgain.deciding.compare.running import RunningServer
from netgain.deciding.compare.settings import Settings
from netgain.deciding.compare.sides import (
    Started,
    all_arms,
    attached,
    check_ports,
    frozen,
    start_sides,
    what_differs,
)
from netgain.deciding.compare.traits import DECLARABLE
from netgain.deciding.decide.growing import when_enough
from netgain.deciding.decide.prepared import journal_of, keep
from netgain.deciding.decide.quality import Judged as QualityJudged
from netgain.deciding.decide.quality import check_files, judge_arms
from netgain.deciding.experiment.arms.cold import verify_cold
from netgain.deciding.experiment.arms.startup import start_again
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.conduct import Asking, conduct, how_far
from netgain.deciding.experiment.growth import Growth
from netgain.deciding.experiment.journal import FILE
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL
from netgain.deciding.experiment.spending import Spending
from netgain.deciding.experiment.sweeping import check_prompts
from netgain.deciding.experiment.trial_file import write_records
from netgain.errors import NetgainError, Unavailable
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.measurement.ask import load_items
from netgain.measuring.measurement.server import introduced, meet
from netgain.measuring.record.as_workload import load_traffic
from netgain.plain_file import claimed

PROBE_TIMEOUT_S = 30.0


async def compare_servers(settings: Settings, narrator: Narrator) -> Comparison:
    """Servers that are started here are gone when it returns, raises or is cancelled. Raises UsageError for what cannot be
    compared and Unavailable when a server does not start or answer."""
    began_s = time.monotonic()
    overrides = overrides_of(settings.overrides)
    if settings.quality is not None:
        check_files(settings.quality.texts, settings.quality.tasks, settings.quality.scorer)
    traffic = load_traffic(settings.workload)  # refused before anything is started
    if settings.loads:
        check_prompts(len(traffic.items), settings.loads)
    before = plan_before(settings) if settings.resume else None
    if before is None:
        check_unused(settings)
    check_ports(settings.started)
    async with AsyncExitStack() as stack:
        if settings.started:  # their logs go there
            stack.enter_context(claimed(settings.output))
        started = await start_sides(settings, stack, narrator)
        ready = await _prepare(settings, started, overrides, narrator)
        servers = running_servers(settings, {name: one.server for name, one in ready.met.items()})
        caveats: tuple[str, ...] = ()
        if before is not None:
            caveats = check_same_servers(settings.output, before.servers, servers, before.design.mirrored)
        if not settings.started:
            stack.enter_context(claimed(settings.output))
        narrator.phase("looking whether their caches begin cold")
        asked = _asking(ready, (BASELINE, CANDIDATE))
        cold = {
            name: await verify_cold(
                started.arms.get(name) or attached(ready.met[name], name, settings.may_reset), _hurried(asking)
            )
            for name, asking in asked.items()
        }
        ready = msgspec.structs.replace(ready, cold=cold)
        quality = None
        if settings.quality is not None:
            bases = ready.met[BASELINE], ready.met[CANDIDATE]
            ask = quality_ask(settings, (bases[0].base, bases[1].base), (bases[0].server.model, bases[1].server.model))
            quality = await judge_arms(ask, narrator, settings.quality.limits)
        planned = before or plan(
            settings,
            ready.workload,
            ready.request_s,
            started.start_s,
            ready.repeatable,
            narrator,
            ready.devices,
            servers,
        )
        measured = await _measure(settings, stack, started, ready, planned, quality, caveats, narrator)
    if not any(seen.record.ok for seen in measured.trial.observations):
        raise Unavailable(
            f"neither server answered a request of the run; the first: {measured.trial.observations[0].record.error}"
        )
    narrator.phase("judging")
    try:
        write_records(settings.output / "records.jsonl", measured.trial)
    except NetgainError as error:  # the verdict is worth more
        narrator.found(f"The single requests are lost: {error}.")
    return await asyncio.to_thread(conclude, settings, ready, planned, measured, began_s)


async def _measure(
    settings: Settings,
    stack: AsyncExitStack,
    started: Started,
    ready: Prepared,
    planned: Plan,
    quality: QualityJudged | None,
    resumed: tuple[str, ...],
    narrator: Narrator,
) -> Measured:
    """`resumed`: what is to be said of a run that goes on."""
    design = planned.design
    arms = await all_arms(settings, stack, started, ready.met, ready.may_reset, design.with_control, narrator)
    if not settings.resume and not settings.started:
        (settings.output / FILE).unlink(missing_ok=True)  # of a finished run, as was checked
    journal = journal_of(settings.output, settings.resume, planned.settings, design, arms)
    stack.callback(journal.close)
    if not settings.resume:
        keep(settings.output, planned)
    caveats = (*frozen(started), *what_differs(ready.known), *resumed)
    for caveat in caveats:
        narrator.found(caveat)
    narrator.phase(announcement(design, ready.request_s), design.fewest.blocks)
    grown: list[Growth] = []
    both = len(started.arms) == 2
    spending = Spending(
        design,
        settings.budget_s,
        len(arms) * settings.devices if both else 1,
        len(arms) * started.start_s if both else 0.0,
        [one.block for one in journal.kept],
    )

    def on_block(block: Block, total: int) -> None:
        narrator.step(f"{block.arm}, {block.seconds:.1f} s")

    async def restart(start: int) -> None:
        await start_again(arms, start, settings.start_timeout_s)

    trial = await conduct(
        arms,
        design,
        _asking(ready, arms),
        f"netgain-{settings.seed}-{time.time_ns()}",
        on_block,
        restart if both else None,
        journal,
        when_enough(design, settings.minimum_effect, settings.seed, narrator, grown.append),
        keep_interrupted=not started.arms,  # else nothing is judged before it went on to its end
        counting=tuple(started.arms),
        affords=spending.affords,
    )
    budget = spending.account(planned.budget, trial.blocks, grown[-1].starts if grown else None)
    if trial.stopped:
        narrator.found(f"stopped after {how_far(trial, design)}; they are judged")
    watched = {
        name: await arm.watched() for name, arm in arms.items() if name != CONTROL and isinstance(arm, RunningServer)
    }
    urls = {name: arm.url for name, arm in arms.items()}
    return Measured(
        trial=trial,
        watched=watched,
        figures={name: {} if seen is None else seen.figures for name, seen in watched.items()} | trial.figures,
        handoffs=told_handoffs(trial, watched, urls),
        urls=urls,
        commands={name: arm.command for name, arm in arms.items()},
        resident={name: seen.resident_bytes if (seen := arm.observe()) else None for name, arm in arms.items()},
        quality=quality,
        grown=grown[-1].says if grown else None,
        caveats=caveats,
        budget=budget,
    )


async def _prepare(settings: Settings, started: Started, overrides: Mapping[str, str], narrator: Narrator) -> Prepared:
    narrator.phase("meeting the servers")
    known = {
        BASELINE: await know(settings, BASELINE, settings.baseline, started.arms.get(BASELINE)),
        CANDIDATE: await know(settings, CANDIDATE, settings.candidate, started.arms.get(CANDIDATE)),
    }
    ruling = rule(known[BASELINE].traits, known[CANDIDATE].traits, settings.kind, overrides, DECLARABLE)
    workload = load_items(known[BASELINE].ask)
    if settings.ignore_eos:
        items = tuple(msgspec.structs.replace(item, ignore_eos=True) for item in workload.items)
        workload = msgspec.structs.replace(workload, items=items)
    met = {name: await meet(one.ask, workload.items, one.greeted) for name, one in known.items()}
    if settings.same_server:  # also under two names of one address
        known[CANDIDATE], met[CANDIDATE] = known[BASELINE], met[BASELINE]
    for name, one in known.items():
        narrator.found(f"{name}: {introduced(one.greeted.server)}, {one.greeted.base}")
    return Prepared(
        known=known,
        met=met,
        ruling=ruling,
        workload=workload,
        salted=all(one.options.salt is not None for one in met.values()),
        may_reset=settings.may_reset,
    )


def _hurried(asking: Asking) -> Asking:
    """For the probe of a cache, which a slow server may leave open."""
    options = msgspec.structs.replace(asking.options, timeout_s=min(asking.options.timeout_s, PROBE_TIMEOUT_S))
    return msgspec.structs.replace(asking, options=options)


def _asking(ready: Prepared, arms: Iterable[str]) -> dict[str, Asking]:
    """Both are asked for the same, as far as both know it: what one refuses the other is not asked for either."""
    netgain = all(one.options.server_record for one in ready.met.values())
    running = all(one.options.running_usage for one in ready.met.values())
    found = {}
    for name in arms:
        met = ready.met[BASELINE if name == CONTROL else name]
        options = msgspec.structs.replace(
            met.options, salt=None, running_usage=running, server_record=netgain, server_tokens=netgain
        )
        found[name] = Asking(model=met.server.model or "", options=options, salted=ready.salted)
    return found
