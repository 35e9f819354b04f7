"""The verdict of a comparison as the document that every netgain verdict is."""

from netgain.deciding.compare.outcome import Comparison
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.report.document import ORDER
from netgain.deciding.verdict.deploy import deployable
from netgain.deciding.verdict.document import ArmFacts, Caveat, Deployable, DesignFacts, Load, Subject, VerdictDocument
from netgain.deciding.verdict.publish import About, publish

ORDER_ONCE = "baseline, candidate, and the other way round in every other group"


def document_of(outcome: Comparison) -> VerdictDocument:
    """What differs and was allowed to stands in `differing`, with the reasons among the caveats."""
    asked = outcome.asked
    version = outcome.context.get("netgain")
    blocks = outcome.blocks
    groups = len({block.group for block in blocks}) or None
    mirrored = any(block.repeat for block in blocks)
    about = About(
        created=outcome.created,
        netgain=None if version is None else str(version),
        technique=Subject(
            name="candidate",
            title=outcome.title,
            kind="token-identical" if asked.promises_identity else "lossy" if outcome.lossy else None,
        ),
        load=Load(
            workload=asked.workload or "unknown",
            digest=asked.workload_digest,
            prompts=asked.prompts,
            output_tokens_at_most=asked.output_tokens_at_most,
            concurrency=asked.loads or (() if asked.concurrency is None else (asked.concurrency,)),
            rate_per_s=asked.rate_per_s,
            temperature=asked.temperature,
            slo=asked.slo,
            seed=asked.seed,
        ),
        design=DesignFacts(
            form=asked.form,
            starts=len({block.start for block in blocks}) or None,
            groups=groups,
            blocks=len(blocks) or None,
            requests=sum(arm.requests for arm in outcome.arms) or None,
            order=(ORDER if mirrored else ORDER_ONCE) if blocks else None,
            cache_state=outcome.cache_state,
            grown=outcome.grown,
            stopped=outcome.stopped,
            budget=outcome.budget,
        ),
        arms=tuple(
            ArmFacts(
                name=arm.name,
                engine=side.engine,
                version=side.version,
                model=side.model,
                url=side.where[0] if blocks and side.command is None else None,
                command=side.command,
                requests=arm.requests,
                failed=arm.failed,
                tokens_per_s=arm.tokens_per_s,
                resident_bytes=arm.resident_bytes,
                settings=side.told,
            )
            for arm in outcome.arms
            if (side := outcome.sides.get(arm.name)) is not None
        ),
        machine=outcome.context,
        quality=outcome.quality,
        handoffs=outcome.handoffs,
        handoffs_unknown=outcome.handoffs_unknown,
        cost=outcome.cost,
        counted=outcome.counted,
        caveats=tuple(Caveat(says=caveat) for caveat in outcome.caveats),
        cannot_show=outcome.cannot_show,
        resources=outcome.kind,
        deploy=_deploy(outcome),
        differing=tuple(row.says for row in outcome.fields if row.state in ("overridden", "on purpose", "differs")),
    )
    return publish(outcome.analysis, about, outcome.sweep)


def _deploy(outcome: Comparison) -> tuple[Deployable, ...]:
    """The command of a side that was started here, which therefore starts its engine; none of hooks, which only their user
    knows, and none where nothing is advised."""
    if outcome.scaling is not None or outcome.analysis.verdict.void:
        return ()
    adopt = outcome.analysis.verdict.decision == "adopt"
    side = outcome.sides[CANDIDATE if adopt else BASELINE]
    if side.command is None or side.engine is None or side.command[0].startswith("NETGAIN_FLAGS="):
        return ()
    checked = (side.version or "the version that was started here",)
    return (deployable(side.engine, "candidate" if adopt else "baseline", side.command, (), checked),)
