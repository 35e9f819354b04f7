"""The verdict that a run of the loop hands on, from everything that it produced."""

from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.observation import BASELINE
from netgain.deciding.report.outcome import Asked, Outcome
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.promise import promised_on
from netgain.deciding.verdict.document import ArmFacts, DesignFacts, Load, Subject, VerdictDocument
from netgain.deciding.verdict.publish import About, publish

ORDER = "baseline, candidate, candidate, baseline, and the other way round in every other group"


def document_of(outcome: Outcome) -> VerdictDocument | None:
    """None when no candidate was tried, so that there is no verdict."""
    if outcome.analysis is None or outcome.chosen is None:
        return None
    technique = CATALOGUE.get(outcome.chosen)
    version = outcome.context.get("netgain")
    told = {arm.name: {} if arm.settings is None else arm.settings for arm in outcome.settings}
    told = {BASELINE: outcome.server, **told}
    about = About(
        created=outcome.created,
        netgain=None if version is None else str(version),
        technique=Subject(
            name=outcome.chosen,
            title=outcome.title or outcome.chosen,
            kind=None if technique is None else promised_on(technique.kind, outcome.engine),
            setting=None if outcome.prediction is None else outcome.prediction.setting,
        ),
        load=load_of(outcome.asked),
        design=_design(outcome),
        arms=tuple(
            ArmFacts(
                name=arm.name,
                engine=outcome.engine,
                version=outcome.engine_version,
                model=outcome.server.get("model"),
                command=arm.command,
                requests=arm.requests,
                failed=arm.failed,
                tokens_per_s=arm.tokens_per_s,
                resident_bytes=arm.resident_bytes,
                settings=told.get(arm.name, {}),
            )
            for arm in outcome.arms
        ),
        machine=outcome.context,
        quality=outcome.quality,
        handoffs=outcome.handoffs,
        handoffs_unknown=outcome.handoffs_unknown,
        cost=outcome.cost,
        family=outcome.family,
        counted=outcome.counted,
        caveats=outcome.caveats,
        cannot_show=outcome.cannot_show,
        deploy=outcome.deployable,
    )
    return publish(outcome.analysis, about, outcome.sweep)


def load_of(asked: Asked) -> Load:
    """What the servers were asked."""
    return Load(
        workload=asked.workload,
        digest=asked.workload_digest,
        prompts=asked.prompts,
        output_tokens_at_most=asked.output_tokens_at_most,
        concurrency=asked.loads or (asked.concurrency,),
        temperature=asked.temperature,
        slo=asked.slo,
        seed=asked.seed,
    )


def _design(outcome: Outcome) -> DesignFacts:
    blocks = outcome.blocks
    groups = len({(block.start, block.group) for block in blocks}) or None
    return DesignFacts(
        form=outcome.asked.form,
        starts=len({block.start for block in blocks}) or None,
        groups=groups,
        group_size=None if groups is None or outcome.sweep is not None else _size(outcome, blocks),
        blocks=len(blocks) or None,
        requests=sum(arm.requests for arm in outcome.arms) or None,
        order=ORDER,
        cache_state=outcome.cache_state,
        grown=outcome.grown,
        budget=outcome.budget,
    )


def _size(outcome: Outcome, blocks: tuple[Block, ...]) -> int | None:
    """Requests per block, where all blocks hold as many."""
    requests = sum(arm.requests for arm in outcome.arms)
    return requests // len(blocks) if blocks and requests % len(blocks) == 0 else None
