"""From the analysis of an experiment, however it was run, to the verdict that is handed on."""

from collections.abc import Sequence

import msgspec

from netgain.cost.price import Costs
from netgain.deciding.experiment.agreement import Counted
from netgain.deciding.experiment.analyse import Analysis
from netgain.deciding.experiment.family import Place
from netgain.deciding.experiment.guards import Guard
from netgain.deciding.experiment.identity import Identity
from netgain.deciding.experiment.sweep import Sweep
from netgain.deciding.experiment.verdict import Check, Looped, Verdict
from netgain.deciding.experiment.waterfall import Waterfall
from netgain.deciding.verdict.document import (
    ArmFacts,
    Caveat,
    Control,
    Deployable,
    DesignFacts,
    GainAccount,
    GuardLine,
    HandoffCost,
    Load,
    Resources,
    Subject,
    VerdictDocument,
)
from netgain.deciding.verdict.quality import Quality
from netgain.wording import count

METRIC = "end-to-end time of a request, from the scheduled send (median over paired prompts)"
METRIC_APART = "end-to-end time of a request, from the scheduled send (ratio of the medians, prompts not paired)"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a verdict that its figures do not tell. `quality` None: only the tokens were compared."""

    created: str
    netgain: str | None
    technique: Subject
    load: Load
    design: DesignFacts
    arms: tuple[ArmFacts, ...]
    machine: dict[str, str | int | float | None] = {}
    quality: Quality | None = None
    handoffs: tuple[HandoffCost, ...] | None = None
    handoffs_unknown: dict[str, str] = {}
    counted: tuple[Counted, ...] = ()
    cost: Costs | None = None
    family: Place | None = None
    caveats: tuple[Caveat, ...] = ()
    cannot_show: tuple[str, ...] = ()
    deploy: tuple[Deployable, ...] = ()
    resources: Resources | None = None
    differing: tuple[str, ...] = ()


def publish(analysis: Analysis, about: About, sweep: Sweep | None = None) -> VerdictDocument:
    """Join figures and facts. Caveats that follow from the figures are added to those of `about`."""
    verdict = analysis.verdict
    primary = verdict.primary
    design = about.design
    if design.unit is None and primary is not None and primary.interval is not None:
        design = msgspec.structs.replace(design, unit=primary.unit)
    return VerdictDocument(
        netgain=about.netgain,
        created=about.created,
        decision=verdict.decision,
        finding=verdict.finding,
        void=verdict.void,
        headline=verdict.headline,
        reasons=verdict.reasons,
        scope=verdict.scope,
        technique=about.technique,
        resources=about.resources,
        differing=about.differing,
        load=about.load,
        metric=METRIC if analysis.paired else METRIC_APART,
        primary=primary,
        confidence=verdict.confidence,
        minimum_effect=verdict.minimum_effect,
        threshold=verdict.threshold,
        detectable=verdict.detectable,
        needed=verdict.needed,
        others={
            "end-to-end time, mean over requests": analysis.e2e_mean,
            "time per output token, median prompt": analysis.tpot_median,
            "first token, median prompt": analysis.ttft_median,
        },
        tails=analysis.tails,
        sweep=sweep,
        guards=tuple(_line(guard) for guard in verdict.guards),
        checks=verdict.checks,
        slo=analysis.slo,
        quality=about.quality or quality_of(verdict, about.technique),
        handoffs=about.handoffs,
        handoffs_unknown=about.handoffs_unknown,
        gain=None if analysis.waterfall is None else _account(analysis.waterfall),
        cost=about.cost,
        family=about.family,
        counted=about.counted,
        control=Control(repeats=analysis.a_a, starts=analysis.control, noise_floor=verdict.noise_floor),
        design=design,
        arms=about.arms,
        machine=about.machine,
        caveats=(*about.caveats, *_found(verdict)),
        cannot_show=about.cannot_show,
        rollback=analysis.rollback,
        deploy=about.deploy,
    )


def quality_of(verdict: Verdict, subject: Subject) -> Quality:
    """What comparing the tokens says. For a technique that promises no identical tokens that is no judgement."""
    identity = verdict.identity
    if identity is None or not identity.compared:
        return Quality(says="no answer was there in both arms, so nothing was compared", identity=identity)
    told = _told(identity)
    if subject.kind != "token-identical":
        return Quality(says=f"{told}; what a difference is worth was not measured", identity=identity)
    return Quality(state="held" if identity.holds else "breached", says=told, identity=identity)


def _told(identity: Identity) -> str:
    same = identity.compared - len(identity.differing)
    return f"the same {identity.basis} for {same} of {count(identity.compared, 'prompt')}"


def _line(guard: Guard) -> GuardLine:
    return GuardLine(
        name=guard.name,
        state=guard.state,
        baseline=guard.baseline,
        candidate=guard.candidate,
        low=guard.low,
        high=guard.high,
        limit=guard.limit,
        basis=guard.basis,
        p=guard.p,
        level=guard.level,
    )


def _account(fall: Waterfall) -> GainAccount:
    return GainAccount(
        requests=fall.requests,
        baseline_s=fall.baseline_ns / 1e9,
        candidate_s=fall.candidate_ns / 1e9,
        saved_s={str(stage): saved / 1e9 for stage, saved in fall.saved_ns.items()},
        residual_s=fall.residual_ns / 1e9,
        by=fall.by,
    )


def _found(verdict: Verdict) -> list[Caveat]:
    """What checks found that does not void the run, and looping answers."""
    told = [Caveat(says=f"{check.name}: {check.says}") for check in _uncertain(verdict.checks)]
    if verdict.looped.looped:
        told.append(Caveat(says=_looping(verdict.looped)))
    return told


def _uncertain(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.ok is None]


def _looping(looped: Looped) -> str:
    without = "nothing is left without them" if looped.without is None else f"{looped.without.ratio:.2f}x without them"
    return (
        f"{len(looped.looped)} of {looped.prompts} prompts were answered with text that repeats itself, which flatters drafts "
        f"that copy: {without}"
    )
