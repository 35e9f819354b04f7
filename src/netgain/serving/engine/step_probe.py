"""Measures the engine's own step-cost curve while it is idle: real batches through the real executor, on borrowed blocks."""

from collections.abc import Mapping

from netgain.cost.probe import StepProbe
from netgain.cost.step_cost import StepCost
from netgain.errors import ExecutorFailed, Overloaded
from netgain.ledger.clock import Clock
from netgain.ledger.stage import Stage
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.batch import Batch, Segment
from netgain.serving.engine.protocols import Executor
from netgain.serving.engine.request import SamplingParams

BATCHES = (1, 2, 4, 8, 16, 32, 64)
DEFAULT_BATCH = 16
TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17)
CONTEXTS = (0, 512, 2048)
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


async def probe_steps(
    executor: Executor,
    pool: BlockPool,
    block_tokens: int,
    clock: Clock,
    budget_s: float,
    *,
    largest_batch: int,
    max_tokens: int,
    max_length: int,
    subject: Mapping[str, str],
) -> StepCost:
    """Greedy verify steps of up to 17 tokens, batch 1 to `largest_batch`, and prompt chunks, within `budget_s`. The fewer
    batches, the more often each point is measured.

    Compositions over `max_tokens` per step, over `max_length` or larger than the pool are left out. What the blocks held
    before is never read by a request: nothing is published. Raises Overloaded when there is no room, ExecutorFailed when
    a step fails.
    """
    longest = max(0, max_length - max(TOKENS))
    batches = {batch for batch in BATCHES if batch <= largest_batch} | {largest_batch}
    probe = StepProbe(sorted(batches), TOKENS, sorted({min(context, longest) for context in CONTEXTS}))
    deadline_s = clock.now() + budget_s
    for batch, tokens, context in probe.order():
        began_s = clock.now()
        expected_s = probe.expected_s((batch, tokens, context))
        needed = batch * -(-(context + tokens) // block_tokens)
        if batch * tokens > max_tokens or context + tokens > max_length or needed > pool.available:
            continue
        if expected_s is not None and began_s + expected_s > deadline_s:
            continue
        blocks = pool.allocate(needed)
        try:
            work = _batch(blocks, batch, tokens, context)
            start_s = clock.now()
            result = await executor.execute(work)
            seconds = clock.now() - start_s
        finally:
            pool.release(blocks)
        failure = next((segment.error for segment in result.segments if segment.error), None)
        if failure:
            raise ExecutorFailed(f"a step-cost probe of {batch} x {tokens} tokens failed: {failure}")
        probe.add((batch, tokens, context), seconds, clock.now() - began_s)
        if clock.now() > deadline_s:
            break
    if not pool.available:
        raise Overloaded("no KV block is free for measuring the step cost: retry when requests have ended")
    return probe.result(subject)


def _batch(blocks: list[int], batch: int, tokens: int, context: int) -> Batch:
    each = len(blocks) // batch
    chunk = tokens > max(TOKENS)  # a prompt chunk needs the logits of its last token only
    return Batch(
        tuple(
            Segment(
                request_id=f"probe-{index}",
                stage=Stage.PREFILL if chunk else Stage.VERIFY,
                tokens=(0,) * tokens,
                start=context,
                block_table=tuple(blocks[index * each : (index + 1) * each]),
                rows=1 if chunk else tokens,
                drafts=0 if chunk else tokens - 1,
                sampling=GREEDY,
                choice=0,
            )
            for index in range(batch)
        )
    )
