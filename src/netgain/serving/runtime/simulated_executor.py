"""Runs batches on a cost model and a virtual clock instead of weights: the scheduler above it is the real one."""

from collections.abc import Callable

from netgain.ledger.clock import Clock
from netgain.serving.engine.batch import Batch, Segment, SegmentResult, StepResult
from netgain.serving.engine.noise import uniform

ACCEPT_LANE = 7  # of the noise: keeps simulated acceptance apart from any draw of a sampler


class SimulatedExecutor:
    """Sleeps for what a step should cost, then answers with filler tokens.

    A draft is accepted with probability `acceptance`, independently of the others (stated wherever results are shown);
    lengths are governed by max_tokens alone, since no filler token ends a text.
    """

    def __init__(
        self, clock: Clock, seconds: Callable[[Batch], float], *, filler: int = 0, acceptance: float = 0.0
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._filler = filler
        self._acceptance = acceptance

    async def execute(self, batch: Batch) -> StepResult:
        await self._clock.sleep(self._seconds(batch))
        return StepResult(tuple(self._answer(segment) for segment in batch.segments))

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, segment: Segment) -> SegmentResult:
        choices = []
        drafts = segment.tokens[len(segment.tokens) - segment.drafts :]
        for row in range(segment.rows):
            position = segment.start + len(segment.tokens) - segment.rows + row + 1
            draw = uniform(segment.sampling.seed, segment.choice, position, ACCEPT_LANE)
            if row < segment.drafts and draw < self._acceptance:
                choices.append(drafts[row])
            else:
                choices.append(self._filler)
        return SegmentResult(tuple(choices))
