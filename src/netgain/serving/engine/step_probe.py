"""Measures the engine's own step-cost curve while it is idle: real batches through the real executor, on borrowed blocks."""

from collections.abc import Mapping

import msgspec

from netgain.cost.probe import StepProbe
from netgain.cost.step_cost import StepCost
from netgain.errors import ExecutorFailed, Overloaded, UsageError
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
WARM_UPS = 3
VERIFY_SHARE = 0.7  # of the time, for verify steps; prompt chunks, each as dear as many of them, get the rest
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
    """Greedy verify steps of up to 17 tokens, batch 1 to `largest_batch`, then prompt chunks, within `budget_s`. The fewer
    batches, the more often each point is measured; the first steps, which pay for lazily built things, are thrown away.

    Compositions over `max_tokens` per step, over `max_length` or larger than the pool are left out. What the blocks held
    before is never read by a request: nothing is published. Raises Overloaded when there is no room, ExecutorFailed when
    a step fails.
    """

    async def run(batch: int, tokens: int, context: int) -> float | None:
        needed = batch * -(-(context + tokens) // block_tokens)
        if batch * tokens > max_tokens or context + tokens > max_length or needed > pool.available:
            return None
        blocks = pool.allocate(needed)
        try:
            start_s = clock.now()
            result = await executor.execute(_batch(blocks, batch, tokens, context))
            seconds = clock.now() - start_s
        finally:
            pool.release(blocks)
        failure = next((segment.error for segment in result.segments if segment.error), None)
        if failure:
            raise ExecutorFailed(f"a step-cost probe of {batch} x {tokens} tokens failed: {failure}")
        return seconds

    async def measure(probe: StepProbe, deadline_s: float) -> None:
        for point in probe.order():
            began_s = clock.now()
            expected_s = probe.expected_s(point)
            if expected_s is not None and began_s + expected_s > deadline_s:
                continue
            seconds = await run(*point)
            if seconds is not None:
                probe.add(point, seconds, clock.now() - began_s)
            if clock.now() > deadline_s:
                break

    if not pool.available:
        raise Overloaded("no KV block is free for measuring the step cost: retry when requests have ended")
    longest = max(0, max_length - max(TOKENS))
    contexts = sorted({min(context, longest) for context in CONTEXTS})
    for _ in range(WARM_UPS):
        for tokens in (1, max(TOKENS)):
            await run(1, tokens, contexts[-1])
    batches = {batch for batch in BATCHES if batch <= largest_batch} | {largest_batch}
    verify = StepProbe(sorted(batches), TOKENS, contexts, prefill_tokens=())
    prefill = StepProbe((), (), contexts[:2])
    start_s = clock.now()
    await measure(verify, start_s + VERIFY_SHARE * budget_s)
    await measure(prefill, start_s + budget_s)
    measured = verify.result(subject)
    try:
        chunks = prefill.result()
    except UsageError:  # no time was left for a single one
        return measured
    return msgspec.structs.replace(
        measured,
        points=(*measured.points, *chunks.points),
        unmeasured=(*measured.unmeasured, *chunks.unmeasured),
    )


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
