"""The end of a decision: everything that was tried, judged together, and each candidate's outcome filled in. No server runs."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from netgain.deciding.decide.cost import costs_at
from netgain.deciding.decide.counted import committed_per_step
from netgain.deciding.decide.drafts import draft_account
from netgain.deciding.decide.prepared import Prepared
from netgain.deciding.decide.score import score
from netgain.deciding.decide.settings import Settings
from netgain.deciding.decide.sweeping import blocks_of, detailed, predict_loads
from netgain.deciding.decide.trying import Tried
from netgain.deciding.diagnose.hypotheses import Hypothesis
from netgain.deciding.experiment.analyse import Terms
from netgain.deciding.experiment.checks import check_trial
from netgain.deciding.experiment.family import Candidate, Judged, analyse_family
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.experiment.spending import newly_lost
from netgain.deciding.report.by_metrics import with_metrics
from netgain.deciding.report.outcome import Drafting, Outcome, arm_report, drafting
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.verdict.deploy import deployable
from netgain.deciding.verdict.handoffs import handoff_costs, of_trial
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.workload.slo import SLO


async def judge_all(
    tried: Sequence[Tried], prepared: Prepared, slo: SLO | None, settings: Settings, narrator: Narrator
) -> tuple[Outcome, ...]:
    """One outcome for each, in the same order."""
    narrator.phase("judging")
    design = prepared.design
    hypotheses = {one.technique: one for one in prepared.chosen}
    candidates = {one.technique: await _candidate(one, hypotheses, prepared, slo, settings) for one in tried}
    judged = await asyncio.to_thread(analyse_family, candidates, design.load_of if design.loads else None)
    for found in judged.values():
        if found.swept is not None:
            narrator.found(found.swept.sweep.says)
    return tuple(
        _outcome(one, judged[one.technique], hypotheses[one.technique], prepared, slo, settings) for one in tried
    )


async def _candidate(
    one: Tried, hypotheses: Mapping[str, Hypothesis], prepared: Prepared, slo: SLO | None, settings: Settings
) -> Candidate:
    chosen, design, prediction = CATALOGUE[one.technique], prepared.design, hypotheses[one.technique].prediction
    assert prediction is not None
    loads = sorted(set(design.loads))
    return Candidate(
        observations=one.trial.observations,
        terms=Terms(
            promises_identity=one.promise == "token-identical",
            slo=slo,
            minimum_effect=settings.minimum_effect,
            seed=settings.seed,
            doubts=one.kept.doubts,
            losses=one.kept.losses,
        ),
        checks=check_trial(one.trial, reuses=chosen.reuses),
        predicted=await asyncio.to_thread(predict_loads, chosen, prepared.facts, loads, prediction.setting),
    )


def _outcome(
    one: Tried, judged: Judged, hypothesis: Hypothesis, prepared: Prepared, slo: SLO | None, settings: Settings
) -> Outcome:
    base, facts, trial = prepared.base, prepared.facts, one.trial
    chosen, prediction = CATALOGUE[one.technique], hypothesis.prediction
    assert prediction is not None
    switch = chosen.switch_on(settings.engine, prediction.setting)
    shown = detailed(trial.observations, prepared.design)
    drafted = drafting(seen.record for seen in shown if seen.arm == CANDIDATE)
    arms = [
        arm_report(name, command, shown, blocks_of(trial.blocks, shown), one.resident[name])
        for name, command in one.commands.items()
    ]
    stages = {} if judged.swept is not None else trial.stages  # of several loads together they would be of none
    analysis, told = with_metrics(judged.analysis, arms, trial.fresh, stages)
    adopt = analysis.verdict.decision == "adopt"
    withheld = adopt and not switch.verified
    advised = one.commands[CANDIDATE if adopt else BASELINE]
    handoffs, handoffs_unknown = handoff_costs(of_trial(trial, trial.handoffs))
    return msgspec.structs.replace(
        base,
        asked=msgspec.structs.replace(base.asked, technique=chosen.name) if settings.techniques else base.asked,
        chosen=chosen.name,
        title=chosen.title,
        must_report=chosen.must_report,
        prediction=prediction,
        analysis=analysis,
        arms=told,
        blocks=trial.blocks,
        counted=trial.counted,
        cost=costs_at(settings, shown, trial.blocks, slo),
        limits=one.limits,
        scores=score(prediction, analysis, _committed(one, drafted)),
        drafting=drafted,
        draft_account=draft_account(one.memory, trial, drafted, facts.drafter),
        cache_state=one.cache_state,
        deploy=None if withheld else advised,
        deploy_note=switch.note if adopt or switch.verified else None,
        sweep=None if judged.swept is None else judged.swept.sweep,
        family=judged.place,
        grown=one.grown,
        budget=one.budget,
        cannot_show=(*prepared.cannot_show[one.technique], *newly_lost(base.budget, one.budget)),
        settings=one.settings,
        handoffs=handoffs,
        handoffs_unknown=handoffs_unknown,
        quality=one.kept.in_verdict(one.quality, one.promise, analysis.verdict.identity, settings.scorer),
        caveats=one.caveats,
        deployable=(
            deployable(
                settings.engine,
                "candidate" if adopt else "baseline",
                advised,
                switch.flags,
                switch.checked_with,
                switch.note if withheld else None,
            ),
        ),
    )


def _committed(one: Tried, drafted: Drafting | None) -> float | None:
    """Tokens per step, by the accounts that came with the answers, else by the engine's counters."""
    if drafted is not None:
        return drafted.committed_per_step
    trial = one.trial
    return committed_per_step(
        trial.figures[CANDIDATE],
        [row for row in trial.counted if row.arm == CANDIDATE],
        [seen.record for seen in trial.fresh if seen.arm == CANDIDATE],
    )
