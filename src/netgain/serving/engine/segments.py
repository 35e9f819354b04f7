"""From planned work to what an executor gets."""

from collections.abc import Mapping, Sequence

import msgspec

from netgain.ledger.stage import Stage
from netgain.serving.engine.batch import Segment
from netgain.serving.engine.generation import Generation
from netgain.serving.engine.grammar import Grammars, Masks
from netgain.serving.engine.protocols import Draft
from netgain.serving.engine.step_plan import Work


def segment_of(
    work: Work, generation: Generation, drafts: tuple[int, ...], allowed: Masks | None, needs_laws: bool
) -> Segment:
    """`drafts` are those that the plan has room for, `allowed` the grammar's masks of the choosing rows, if there is one."""
    tokens = generation.tokens[work.start : work.start + work.count]
    segment = Segment(
        request_id=work.sequence.id,
        stage=Stage.PREFILL if work.prefill else Stage.VERIFY if work.drafts else Stage.DECODE,
        tokens=(*tokens, *drafts),
        start=work.start,
        block_table=work.sequence.blocks,
        rows=1 + work.drafts if work.samples else 0,
        drafts=work.drafts,
        sampling=generation.request.sampling,
        choice=generation.request.choice,
        laws=needs_laws and work.drafts > 0,
    )
    request = generation.request
    if request.chunks is not None and work.prefill:
        segment = msgspec.structs.replace(segment, chunks=request.chunks, salt=request.salt, context=generation.tokens)
    if generation.history is None and not work.scored:  # most requests: nothing to copy for
        return segment
    edits = None
    if work.samples and generation.history is not None:
        edits = generation.history.edits(drafts, allowed)
    return msgspec.structs.replace(
        segment,
        edits=edits,
        scored=tuple(generation.to_score(work.scored_from, work.scored)),
        scored_from=work.scored_from - work.start,
    )


def masks_of(
    plan: Sequence[Work], drafts: Mapping[str, Draft], generations: Mapping[str, Generation], grammars: Grammars
) -> dict[str, Masks]:
    """The allowed tokens of every row that chooses under a grammar, by request."""
    jobs = {}
    for work in plan:
        generation = generations[work.sequence.id]
        if work.samples and generation.constraint is not None and generation.history is not None:
            drafted = drafts[work.sequence.id].tokens[: work.drafts] if work.drafts else ()
            unwelcome = generation.history.banned_rows(1 + work.drafts)
            jobs[work.sequence.id] = (generation.constraint, drafted, unwelcome)
    return dict(zip(jobs, grammars.masks(tuple(jobs.values())), strict=True)) if jobs else {}
