"""The main job: measure a baseline, say where its time goes, predict what would help, try it in pairs, judge, score."""

import asyncio
import datetime
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec

from netgain.deciding.decide.candidates import choose, nothing_to_try, refuse_what_cannot_be_judged, without_lossy
from netgain.deciding.decide.chunks import as_served
from netgain.deciding.decide.context import caveats_of, context, probed
from netgain.deciding.decide.cost import costs_at
from netgain.deciding.decide.counted import committed_per_step
from netgain.deciding.decide.drafts import copying, draft_account, drafter_on
from netgain.deciding.decide.engines import (
    asking,
    baseline_flags,
    caveats_before,
    decomposed,
    engine_version,
    launch,
    replayable,
    settings_of,
    step_cost,
)
from netgain.deciding.decide.growing import when_enough
from netgain.deciding.decide.kv_outside import kv_moved, kv_told
from netgain.deciding.decide.narrate import Silence
from netgain.deciding.decide.planning import plan
from netgain.deciding.decide.prepared import (
    Prepared,
    asked_for,
    check_unused,
    journal_of,
    keep,
    prepared_before,
    settings_tree,
)
from netgain.deciding.decide.promise_kept import judge_promise
from netgain.deciding.decide.prompts import cannot_show, looped_share, prepare_items, server_client_gap_s
from netgain.deciding.decide.quality import check_files, judge_arms, limits_of, quality_ask
from netgain.deciding.decide.recording import record_baseline
from netgain.deciding.decide.score import score
from netgain.deciding.decide.server import Served, served_model, step_counts
from netgain.deciding.decide.settings import Settings
from netgain.deciding.decide.sweeping import announcement, blocks_of, judge_trial
from netgain.deciding.diagnose.bottleneck import find_bottleneck
from netgain.deciding.diagnose.hypotheses import rank
from netgain.deciding.diagnose.workload_classes import workload_classes
from netgain.deciding.experiment.analyse import Terms
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.idle import find_spinners
from netgain.deciding.experiment.arms.startup import bring_up, bring_up_others, end, start_again
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.conduct import Asking, conduct
from netgain.deciding.experiment.growth import Growth
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL
from netgain.deciding.experiment.spending import Spending, newly_lost
from netgain.deciding.experiment.trial_file import write_records
from netgain.deciding.report.outcome import Outcome, arm_limits, arm_report, drafting
from netgain.deciding.technique.catalogue import CATALOGUE, technique
from netgain.deciding.technique.drafter import read_drafter
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.promise import promised_on
from netgain.deciding.verdict.deploy import deployable
from netgain.deciding.verdict.handoffs import handoff_costs, of_trial
from netgain.measuring.client.interrupt import run_interruptible
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.record.as_workload import load_traffic
from netgain.measuring.workload.slo import SLO, parse_slo


def decide(settings: Settings, narrator: Narrator | None = None) -> Outcome:
    """Run the loop and return what it found; servers it started are gone when it returns, raises or is interrupted.

    Raises UsageError for input that cannot be used and Unavailable when a server does not start or answer.
    """
    return run_interruptible(decide_async(settings, narrator or Silence()))


async def decide_async(settings: Settings, narrator: Narrator) -> Outcome:
    """As `decide`, within a running event loop."""
    began_s = time.monotonic()
    workload = load_traffic(settings.workload)
    slo = None if settings.slo is None else parse_slo(settings.slo)
    only = None if settings.technique is None else technique(settings.technique)
    catalogue = CATALOGUE if only is None else {only.name: only}
    tryable = without_lossy(catalogue) if only is None else catalogue
    refuse_what_cannot_be_judged(workload, tryable)
    check_files(settings.texts, settings.tasks, settings.scorer)
    if settings.draft is not None:
        read_drafter(settings.draft, settings.draft_survival, settings.draft_cost)  # before anything is started
    check_unused(settings)
    items = prepare_items(workload, settings)
    before_crash = prepared_before(settings) if settings.resume else None
    async with AsyncExitStack() as stack:
        baseline = _launch(stack, settings, BASELINE, baseline_flags(settings.engine), narrator)
        narrator.phase("starting the baseline server")
        starting_s = time.monotonic()
        await bring_up(baseline, settings.start_timeout_s)
        start_s = time.monotonic() - starting_s
        await find_spinners((baseline,))
        served = await served_model(baseline.url)
        model = served.name
        asked = asking(settings, model)
        if before_crash is not None:
            outcome = await _try(before_crash, baseline, stack, served, asked, slo, settings, narrator, began_s)
            return msgspec.structs.replace(outcome, seconds=time.monotonic() - began_s)
        narrator.phase("measuring what a step costs")
        cost, missing, cost_basis = await step_cost(settings, baseline.url, asked)
        probe = probed()
        before = await step_counts(baseline.url)
        recorded, seen = await record_baseline(baseline, items, asked, settings, narrator)
        limits = arm_limits(BASELINE, before, await step_counts(baseline.url), served.work, probe)
        answered = {record.item_id for record in recorded.records if record.ok}
        used = tuple(item for item in items if item.id in answered)
        parts = decomposed(settings.engine, recorded.records, seen)
        planned = plan(settings, used, parts, cost, start_s)
        design = planned.design
        for said in (f"the experiment: {planned.estimate.says}", *planned.lost):
            narrator.found(said)
        tried = design.fewest
        good = [record for record in recorded.records if record.ok and record.item_id in tried.ids]
        version = await engine_version(settings.engine, baseline.url)
        facts = Facts(
            engine=settings.engine,
            engine_version=version or "unknown",
            model=model,
            workload=workload.name,
            concurrency=settings.concurrency,
            decomposition=parts,
            records=await replayable(settings.engine, baseline.url, model, good, design.items),
            synthetic_text=workload.synthetic,
            step_cost=cost,
            step_cost_missing=missing,
            step_cost_basis=cost_basis,
            drafter=drafter_on(settings, served),
            starts={item.id: tried.start_of(at) for at, group in enumerate(tried.groups) for item in group},
            tier=settings.tier_tried,
            codec=settings.codec,
            kv_moved=kv_moved(seen),
        )
        told = {**served.told, **await kv_told(settings, baseline)}
        facts = await as_served(facts, told, baseline.url, design.items)
        bottleneck = find_bottleneck(facts)
        narrator.found(bottleneck.statement)
        narrator.phase("predicting candidates from the recorded traffic")
        hypotheses = await asyncio.to_thread(rank, catalogue, facts)
        classes = await asyncio.to_thread(workload_classes, facts, copying(facts, hypotheses))
        for one in classes:
            if one.holds:
                narrator.found(f"{one.workload}: {one.attitude} ({one.evidence})")
        best = choose(hypotheses, tryable, settings.engine)
        reuses = best is not None and technique(best.technique).reuses
        base = Outcome(
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seconds=0.0,
            first_verdict_s=None,
            asked=asked_for(settings, workload, len(tried.ids)),
            context=context(),
            server=served.told,
            settings=await settings_of(settings.engine, {BASELINE: baseline}),
            decomposition=facts.decomposition,
            bottleneck=bottleneck,
            hypotheses=hypotheses,
            chosen=None,
            title=None,
            must_report=(),
            prediction=None,
            analysis=None,
            stopped=None if best else nothing_to_try(hypotheses),
            arms=(),
            blocks=(),
            probe=probe,
            limits=(limits,),
            scores=(),
            drafting=None,
            cache_state=None,
            deploy=None,
            deploy_note=None,
            server_client_gap_s=server_client_gap_s(recorded.records),
            looped_baseline=looped_share(recorded.records),
            cannot_show=(
                *workload.notes,
                *planned.lost,
                *cannot_show(settings, design.fewest.starts, items, tried.ids, reuses),
            ),
            budget=planned.budget,
            engine=settings.engine,
            engine_version=version,
            workload_classes=classes,
        )
        outcome = base
        if best is not None:
            prepared = Prepared(settings=settings_tree(settings), base=base, facts=facts, best=best, design=design)
            outcome = await _try(prepared, baseline, stack, served, asked, slo, settings, narrator, began_s)
    return msgspec.structs.replace(outcome, seconds=time.monotonic() - began_s)


async def _try(
    prepared: Prepared,
    baseline: Arm,
    stack: AsyncExitStack,
    served: Served,
    asked: Asking,
    slo: SLO | None,
    settings: Settings,
    narrator: Narrator,
    began_s: float,
) -> Outcome:
    """Run the paired experiment for one hypothesis that has a prediction, and fill in the outcome."""
    best, base, facts, design = prepared.best, prepared.base, prepared.facts, prepared.design
    chosen, prediction = CATALOGUE[best.technique], best.prediction
    asked = msgspec.structs.replace(asked, reuses=chosen.reuses)
    assert prediction is not None
    setting = ", ".join(f"{name}={value}" for name, value in prediction.setting.items())
    narrator.found(
        f"{best.title} is predicted not to pay (at best {prediction.speedup_e2e:.2f}x with {setting}); tried to check that"
        if prediction.off_is_better
        else f"{best.title} is predicted to make requests {prediction.speedup_e2e:.2f}x as fast ({setting})"
    )
    switch = chosen.switch_on(settings.engine, prediction.setting)
    candidate = _launch(stack, settings, CANDIDATE, switch.flags, narrator)
    arms: dict[str, Arm] = {BASELINE: baseline, CANDIDATE: candidate}
    if design.with_control:
        arms[CONTROL] = _launch(stack, settings, CONTROL, baseline_flags(settings.engine), narrator)
    journal = journal_of(settings.output, settings.resume, settings_tree(settings), design, arms)
    stack.callback(journal.close)
    if not settings.resume:
        keep(settings.output, prepared)
    narrator.phase("starting the candidate server")
    starting_s = await bring_up_others(arms, BASELINE, settings.start_timeout_s)
    narrator.phase("looking for what differs between the arms besides the technique")
    caveats = await caveats_before(settings, arms, asked, switch, chosen.name)
    told = await settings_of(settings.engine, {BASELINE: baseline, CANDIDATE: candidate})
    for caveat in caveats:
        narrator.found(caveat.says)
    quality = None
    if chosen.kind == "lossy" or settings.tasks is not None:
        asked_of_quality = quality_ask(baseline.url, arms[CANDIDATE].url, facts.records, settings, facts.chunks)
        quality = await judge_arms(asked_of_quality, narrator, limits_of(settings))
    narrator.phase(announcement(design, facts), design.fewest.blocks)
    grown: list[Growth] = []

    def on_block(block: Block, total: int) -> None:
        narrator.step(f"{block.arm}, {block.seconds:.1f} s")

    before = {name: await step_counts(arm.url) for name, arm in arms.items()}

    async def restart(start: int) -> None:
        await start_again(arms, start, settings.start_timeout_s)
        before.update({name: await step_counts(arm.url) for name, arm in arms.items()})  # they count from 0 again

    spending = Spending(
        design, settings.budget_s, len(arms) * settings.devices, starting_s, [one.block for one in journal.kept]
    )
    trial = await conduct(
        arms,
        design,
        asked,
        f"netgain-{settings.seed}-{time.time_ns()}",
        on_block,
        restart,
        journal,
        when_enough(design, settings.minimum_effect, settings.seed, narrator, grown.append),
        counting=(BASELINE, CANDIDATE),
        affords=spending.affords,
    )
    budget = spending.account(base.budget, trial.blocks, grown[-1].starts if grown else None)
    after = {name: await step_counts(arm.url) for name, arm in arms.items()}
    narrator.phase("judging")
    promise = promised_on(chosen.kind, settings.engine)
    kept = await judge_promise(promise, trial.observations, design.items, arms, settings.engine, served.name, quality)
    terms = Terms(
        promises_identity=promise == "token-identical",
        slo=slo,
        minimum_effect=settings.minimum_effect,
        seed=settings.seed,
        doubts=kept.doubts,
        losses=kept.losses,
    )
    judged = await judge_trial(trial, design, terms, chosen, facts, prediction.setting, narrator)
    analysis = judged.analysis
    drafted = drafting(seen.record for seen in judged.detailed if seen.arm == CANDIDATE)
    write_records(settings.output / "records.jsonl", trial)
    resident = {name: seen.resident_bytes if (seen := arm.observe()) else None for name, arm in arms.items()}
    adopt = analysis.verdict.decision == "adopt"
    withheld = adopt and not switch.verified
    handoffs, handoffs_unknown = handoff_costs(of_trial(trial, trial.handoffs))
    return msgspec.structs.replace(
        base,
        first_verdict_s=time.monotonic() - began_s,
        chosen=chosen.name,
        title=chosen.title,
        must_report=chosen.must_report,
        prediction=prediction,
        analysis=analysis,
        arms=tuple(
            arm_report(name, arm.command, judged.detailed, blocks_of(trial.blocks, judged.detailed), resident[name])
            for name, arm in arms.items()
        ),
        blocks=trial.blocks,
        counted=trial.counted,
        cost=costs_at(settings, judged.detailed, trial.blocks, slo),
        limits=tuple(arm_limits(name, before[name], after[name], served.work, base.probe) for name in arms),
        scores=score(
            prediction,
            analysis,
            drafted.committed_per_step
            if drafted
            else committed_per_step(
                trial.figures[CANDIDATE],
                [row for row in trial.counted if row.arm == CANDIDATE],
                [seen.record for seen in trial.fresh if seen.arm == CANDIDATE],
            ),
        ),
        drafting=drafted,
        draft_account=await draft_account(chosen.name, arms, trial, drafted, facts.drafter),
        cache_state=await baseline.reset(),
        deploy=None if withheld else (arms[CANDIDATE] if adopt else baseline).command,
        deploy_note=switch.note if adopt or switch.verified else None,
        sweep=judged.sweep,
        grown=grown[-1].says if grown else None,
        budget=budget,
        cannot_show=(*base.cannot_show, *newly_lost(base.budget, budget)),
        settings=told,
        handoffs=handoffs,
        handoffs_unknown=handoffs_unknown,
        quality=kept.in_verdict(quality, promise, analysis.verdict.identity, settings.scorer),
        caveats=(*caveats_of(served), *caveats, *kept.caveats(settings.engine)),
        deployable=(
            deployable(
                settings.engine,
                "candidate" if adopt else "baseline",
                (arms[CANDIDATE] if adopt else baseline).command,
                switch.flags,
                switch.checked_with,
                switch.note if withheld else None,
            ),
        ),
    )


def _launch(stack: AsyncExitStack, settings: Settings, name: str, flags: Sequence[str], narrator: Narrator) -> Arm:
    """An arm that the stack will stop, also when it never became ready."""
    arm = launch(settings, name, flags)
    stack.push_async_callback(end, arm, narrator.found)
    return arm
