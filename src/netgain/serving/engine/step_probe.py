"""Measures the engine's own step-cost curve between requests: real batches through the real executor, one step at a time."""

from collections.abc import Iterator, Mapping

import msgspec

from netgain.cost.probe import Composition, StepProbe
from netgain.cost.step_cost import StepCost
from netgain.errors import ExecutorFailed, UsageError
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
EVICTED = 8  # a background measurement may evict one in so many of the blocks that could be handed out
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of this engine may hold."""

    block_tokens: int
    max_tokens: int
    max_length: int


class StepMeasurement:
    """Greedy verify steps of up to 17 tokens, batch 1 to `largest_batch`, then prompt chunks, within `budget_s` of their own
    time. The fewer batches, the more often each point is measured; the first steps, which pay for lazily built things, are
    thrown away.

    Compositions over the limits or larger than the pool are left out. Blocks are held during a step only, and only those
    that its tokens are written to; the context before them is read from whatever blocks there are. What was written is
    never read by a request: nothing is published. `in_background` evicts few cached blocks, else as many as it takes.
    """

    def __init__(
        self,
        executor: Executor,
        pool: BlockPool,
        clock: Clock,
        limits: Limits,
        budget_s: float,
        largest_batch: int,
        *,
        in_background: bool = False,
    ) -> None:
        self._executor, self._pool, self._clock, self._limits = executor, pool, clock, limits
        self._in_background = in_background
        longest = max(0, limits.max_length - max(TOKENS))
        contexts = sorted({min(context, longest) for context in CONTEXTS})
        batches = {batch for batch in BATCHES if batch <= largest_batch} | {largest_batch}
        self._verify = StepProbe(sorted(batches), TOKENS, contexts, prefill_tokens=())
        self._prefill = StepProbe((), (), contexts[:2])
        self._spent_s = 0.0
        self._steps = self._plan(budget_s, contexts[-1])

    async def advance(self) -> bool:
        """Run one step; False when there is none left that fits. Raises ExecutorFailed when it fails."""
        for probe, point, limit_s in self._steps:
            expected_s = None if probe is None else probe.expected_s(point)
            if expected_s is not None and self._spent_s + expected_s > limit_s:
                continue
            began_s = self._clock.now()
            seconds = await self._run(*point)
            if seconds is None:
                continue
            if probe is not None:
                elapsed_s = self._clock.now() - began_s
                self._spent_s += elapsed_s
                probe.add(point, seconds, elapsed_s)
            return True
        return False

    def result(self, subject: Mapping[str, str], measured_at: float | None) -> StepCost:
        """The curve of what was measured so far. Raises UsageError when that is nothing."""
        measured = msgspec.structs.replace(self._verify.result(subject), measured_at=measured_at)
        try:
            chunks = self._prefill.result()
        except UsageError:  # no time was left for a single one
            return measured
        return msgspec.structs.replace(
            measured,
            points=(*measured.points, *chunks.points),
            unmeasured=(*measured.unmeasured, *chunks.unmeasured),
        )

    def _plan(self, budget_s: float, longest: int) -> Iterator[tuple[StepProbe | None, Composition, float]]:
        """Which step to run for whom, and by which time spent; for nobody: a warm-up."""
        for _ in range(WARM_UPS):
            for tokens in (1, max(TOKENS)):
                yield None, (1, tokens, longest), budget_s
        for point in self._verify.order():
            yield self._verify, point, VERIFY_SHARE * budget_s
        for point in self._prefill.order():
            yield self._prefill, point, budget_s

    async def _run(self, batch: int, tokens: int, context: int) -> float | None:
        """Seconds in the executor; None when the step has no room."""
        limits, pool = self._limits, self._pool
        behind = context // limits.block_tokens  # whole blocks that are only read
        written = -(-(context + tokens) // limits.block_tokens) - behind
        room = max(pool.free, pool.available // EVICTED) if self._in_background else pool.available
        if batch * tokens > limits.max_tokens or context + tokens > limits.max_length or batch * written > room:
            return None
        own = pool.allocate(batch * written)
        try:
            read = pool.most_likely_written(batch * behind)
            if len(read) < batch * behind:
                return None
            tables = [
                (*read[index * behind : (index + 1) * behind], *own[index * written : (index + 1) * written])
                for index in range(batch)
            ]
            start_s = self._clock.now()
            result = await self._executor.execute(_batch(tables, tokens, context))
            seconds = self._clock.now() - start_s
        finally:
            pool.release(own)
        failure = next((segment.error for segment in result.segments if segment.error), None)
        if failure:
            raise ExecutorFailed(f"a step-cost probe of {batch} x {tokens} tokens failed: {failure}")
        return seconds


def _batch(tables: list[tuple[int, ...]], tokens: int, context: int) -> Batch:
    chunk = tokens > max(TOKENS)  # a prompt chunk needs the logits of its last token only
    return Batch(
        tuple(
            Segment(
                request_id=f"probe-{index}",
                stage=Stage.PREFILL if chunk else Stage.VERIFY,
                tokens=(0,) * tokens,
                start=context,
                block_table=table,
                rows=1 if chunk else tokens,
                drafts=0 if chunk else tokens - 1,
                sampling=GREEDY,
                choice=0,
            )
            for index, table in enumerate(tables)
        )
    )
