"""The first half of a decision: the baseline measured, decomposed, and what every technique is predicted to do with it."""

import asyncio
import datetime
from collections.abc import Mapping

import msgspec

from netgain.cost.step_cost import StepCost
from netgain.deciding.decide.candidates import choose, nothing_to_try
from netgain.deciding.decide.chunks import as_served
from netgain.deciding.decide.context import context, probed
from netgain.deciding.decide.drafts import copying, drafter_on
from netgain.deciding.decide.engines import decomposed, engine_version, prompt_cost, replayable, settings_of, step_cost
from netgain.deciding.decide.kv_outside import kv_moved, kv_told
from netgain.deciding.decide.planning import Plan, plan
from netgain.deciding.decide.prepared import Prepared, asked_for, settings_tree
from netgain.deciding.decide.prompts import cannot_show, looped_share, server_client_gap_s
from netgain.deciding.decide.question import Question
from netgain.deciding.decide.recording import record_baseline
from netgain.deciding.decide.server import Served, step_counts
from netgain.deciding.decide.settings import Settings
from netgain.deciding.diagnose.bottleneck import find_bottleneck
from netgain.deciding.diagnose.hypotheses import Hypothesis, rank
from netgain.deciding.diagnose.workload_classes import workload_classes
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.conduct import Asking
from netgain.deciding.experiment.design import Design
from netgain.deciding.experiment.observation import BASELINE
from netgain.deciding.report.outcome import Outcome, arm_limits
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.codec_asked import KVMoved
from netgain.deciding.technique.decomposition import Decomposition
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.prompt_cost import PromptCost
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.client.record import ClientRecord


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The baseline, as it ran alone. `told`: what it says of itself and its KV."""

    parts: Decomposition
    records: tuple[ClientRecord, ...]
    version: str | None
    told: Mapping[str, str]
    cost: StepCost | None
    cost_missing: str | None
    cost_basis: str
    prompts: PromptCost | None
    moved: KVMoved | None


async def prepare(
    question: Question,
    baseline: Arm,
    served: Served,
    asked: Asking,
    settings: Settings,
    start_s: float,
    narrator: Narrator,
) -> Prepared:
    """Measure the baseline, which runs alone, and choose what to try. `start_s`: how long its server took to start.

    Nothing is chosen where no technique can be tried: `base.stopped` says why."""
    narrator.phase("measuring what a step costs")
    cost, missing, basis = await step_cost(settings, baseline.url, asked)
    prompts = await prompt_cost(settings, baseline.url, asked)
    probe = probed()
    before = await step_counts(baseline.url, baseline.headers)
    recorded, seen = await record_baseline(baseline, question.items, asked, settings, narrator)
    limits = arm_limits(BASELINE, before, await step_counts(baseline.url, baseline.headers), served.work, probe)
    answered = {record.item_id for record in recorded.records if record.ok}
    used = tuple(item for item in question.items if item.id in answered)
    measured = _Measured(
        parts=decomposed(settings.engine, recorded.records, seen),
        records=recorded.records,
        version=await engine_version(settings.engine, baseline.url, baseline.headers),
        told={**served.told, **await kv_told(settings, baseline)},
        cost=cost,
        cost_missing=missing,
        cost_basis=basis,
        prompts=prompts,
        moved=kv_moved(seen),
    )

    def planned_for(candidates: int) -> Plan:
        found = plan(settings, used, measured.parts, cost, start_s, candidates)
        for said in (f"the experiment: {found.estimate.says}", *found.lost):
            narrator.found(said)
        return found

    wanted = min(settings.most, len(question.tryable))
    planned = planned_for(wanted)
    facts = await _facts(question, planned.design, measured, baseline, served, settings)
    bottleneck = find_bottleneck(facts)
    narrator.found(bottleneck.statement)
    narrator.phase("predicting candidates from the recorded traffic")
    hypotheses = await asyncio.to_thread(rank, question.predicted, facts)
    chosen = choose(hypotheses, question.tryable, settings.engine, wanted)
    if 0 < len(chosen) < wanted:  # fewer share the budget, which may then hold a larger experiment
        narrator.found(f"{len(chosen)} of the {wanted} candidates asked for can be tried here")
        again = planned_for(len(chosen))
        if again.design != planned.design:
            facts = await _facts(question, again.design, measured, baseline, served, settings)
            hypotheses = await asyncio.to_thread(rank, question.predicted, facts)
            chosen = choose(hypotheses, question.tryable, settings.engine, len(chosen))
        planned = again
    classes = await asyncio.to_thread(workload_classes, facts, copying(facts, hypotheses))
    for one in classes:
        if one.holds:
            narrator.found(f"{one.workload}: {one.attitude} ({one.evidence})")
    tried = planned.design.fewest

    def hidden(reuses: bool) -> tuple[str, ...]:
        own = cannot_show(settings, tried.starts, question.items, tried.ids, reuses)
        return (*question.workload.notes, *planned.lost, *own)

    base = Outcome(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        first_verdict_s=None,
        asked=asked_for(settings, question.workload, len(tried.ids)),
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
        stopped=None if chosen else nothing_to_try(hypotheses),
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
        cannot_show=hidden(False),
        budget=planned.budget,
        engine=settings.engine,
        engine_version=measured.version,
        workload_classes=classes,
    )
    return Prepared(
        settings=settings_tree(settings),
        base=base,
        facts=facts,
        chosen=chosen,
        cannot_show={one.technique: hidden(CATALOGUE[one.technique].reuses) for one in chosen},
        design=planned.design,
    )


async def _facts(
    question: Question, design: Design, measured: _Measured, baseline: Arm, served: Served, settings: Settings
) -> Facts:
    """What the techniques are predicted from: the recorded requests whose prompts this design asks."""
    tried = design.fewest
    good = [record for record in measured.records if record.ok and record.item_id in tried.ids]
    facts = Facts(
        engine=settings.engine,
        engine_version=measured.version or "unknown",
        model=served.name,
        workload=question.workload.name,
        concurrency=settings.concurrency,
        decomposition=measured.parts,
        records=await replayable(settings.engine, baseline, served.name, good, design.items),
        synthetic_text=question.workload.synthetic,
        step_cost=measured.cost,
        step_cost_missing=measured.cost_missing,
        step_cost_basis=measured.cost_basis,
        drafter=drafter_on(settings, served),
        starts={item.id: tried.start_of(at) for at, group in enumerate(tried.groups) for item in group},
        tier=settings.tier_tried,
        codec=settings.codec,
        kv_moved=measured.moved,
        prompt_cost=measured.prompts,
    )
    return await as_served(facts, measured.told, baseline, design.items)


def predicted(one: Hypothesis) -> str:
    """What is expected of a candidate, in words."""
    prediction = one.prediction
    assert prediction is not None
    setting = ", ".join(f"{name}={value}" for name, value in prediction.setting.items())
    if prediction.off_is_better:
        return f"{one.title} is predicted not to pay (at best {prediction.speedup_e2e:.2f}x with {setting}); tried to check that"
    return f"{one.title} is predicted to make requests {prediction.speedup_e2e:.2f}x as fast ({setting})"
