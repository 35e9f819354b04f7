"""The verdict of a comparison as the document that every netgain verdict is."""

from netgain.deciding.compare.outcome import Comparison
from netgain.deciding.verdict.document import ArmFacts, Caveat, DesignFacts, Load, Subject, VerdictDocument
from netgain.deciding.verdict.publish import About, publish

ORDER = "baseline, candidate, candidate, baseline, and the other way round in every other group"
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
            kind="token-identical" if asked.promises_identity else None,
        ),
        load=Load(
            workload=asked.workload or "unknown",
            digest=asked.workload_digest,
            prompts=asked.prompts,
            output_tokens_at_most=asked.output_tokens_at_most,
            concurrency=() if asked.concurrency is None else (asked.concurrency,),
            temperature=asked.temperature,
            slo=asked.slo,
            seed=asked.seed,
        ),
        design=DesignFacts(
            form=asked.form,
            starts=1 if blocks else None,
            groups=groups,
            blocks=len(blocks) or None,
            requests=sum(arm.requests for arm in outcome.arms) or None,
            order=(ORDER if mirrored else ORDER_ONCE) if blocks else None,
            cache_state=outcome.cache_state,
        ),
        arms=tuple(
            ArmFacts(
                name=arm.name,
                engine=side.engine,
                version=side.version,
                model=side.model,
                url=side.where[0] if blocks else None,
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
        caveats=tuple(Caveat(says=caveat) for caveat in outcome.caveats),
        cannot_show=outcome.cannot_show,
        resources=outcome.kind,
        differing=tuple(row.says for row in outcome.fields if row.state in ("overridden", "on purpose", "differs")),
    )
    return publish(outcome.analysis, about)
