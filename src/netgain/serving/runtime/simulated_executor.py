"""Runs batches on measured step costs and a virtual clock instead of weights: the scheduler above it is the real one."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from netgain.cost.step_cost import StepCost
from netgain.ledger.clock import Clock
from netgain.ledger.stage import Stage
from netgain.serving.blocks.layout import KVLayout
from netgain.serving.engine.batch import Batch, Segment, SegmentResult, StepResult
from netgain.serving.engine.noise import uniform
from netgain.serving.tiers.object import TARGET, Shape
from netgain.serving.tiers.planes import Plane, Rows

ACCEPT_LANE = 7  # of the noise: simulated acceptance is apart from any draw of a sampler


class SimulatedExecutor:
    """Sleeps for what a step should cost, then answers with filler tokens.

    A draft is accepted with probability `acceptance`, independently of the others; lengths follow max_tokens alone, since
    no filler token ends a text. Under a grammar the lowest allowed token stands in for a filler that is not, and a grammar
    that can only end does end. Log-probabilities are not answered: there is no model. All this is to be stated wherever
    results are shown. `outside` counts the steps whose cost lay outside the measured range, so that the nearest measured
    cost stands in.
    """

    def __init__(self, clock: Clock, cost: StepCost, *, filler: int = 0, acceptance: float = 0.0) -> None:
        self.outside = 0
        self._clock = clock
        self._cost = cost
        self._filler = filler
        self._acceptance = acceptance

    async def execute(self, batch: Batch) -> StepResult:
        groups = len(batch.arriving[0].starts) if batch.arriving else 1
        missing: set[str] = set()
        for group in range(groups):
            for one in batch.arriving:
                if one.request_id not in missing and not await one.ready(group):
                    missing.add(one.request_id)
            await self._clock.sleep(self.seconds(batch) / groups)
        return StepResult(tuple(self._answer(segment) for segment in batch.segments))

    def close(self) -> None:
        """Nothing is held."""

    def seconds(self, batch: Batch) -> float:
        """Prompt chunks and the group of decoding requests cost what each was measured to cost alone; all but one of them
        save the cost of a plain decode step, since the weights are read once per step."""
        decoding = [segment for segment in batch.segments if segment.stage is not Stage.PREFILL]
        parts = [self._cost.prefill(len(s.tokens), s.start) for s in batch.segments if s.stage is Stage.PREFILL]
        if decoding:
            size = len(decoding)
            tokens = max(1, round(sum(len(s.tokens) for s in decoding) / size))
            context = round(sum(s.start for s in decoding) / size)
            parts.append(self._cost.verify(size, tokens, context))
        self.outside += any(not part.inside for part in parts)
        shared_s = self._cost.verify(1, 1, 0).seconds * (len(parts) - 1)
        return max(max(part.seconds for part in parts), sum(part.seconds for part in parts) - shared_s)

    def _answer(self, segment: Segment) -> SegmentResult:
        choices = []
        drafts = segment.tokens[len(segment.tokens) - segment.drafts :]
        for row in range(segment.rows):
            position = segment.start + len(segment.tokens) - segment.rows + row + 1
            draw = uniform(segment.sampling.seed, segment.choice, position, ACCEPT_LANE)
            if row < segment.drafts and draw < self._acceptance:
                choices.append(drafts[row])
            elif segment.edits is None or segment.edits.allowed is None:
                choices.append(self._filler)
            else:
                choices.append(_allowed(segment.edits.allowed[row], self._filler))
        return SegmentResult(tuple(choices))


def _allowed(mask: npt.NDArray[np.uint32], filler: int) -> int:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return filler if bits[filler] else int(bits.argmax())


class SimulatedMemory:
    """The KV of an executor that has none, for tiers on a virtual clock: as many bytes as a model's blocks would have, all
    zero, and copied in no time."""

    def __init__(self, layout: KVLayout) -> None:
        shape = Shape(
            kv_heads=layout.kv_heads,
            head_dim=layout.head_dim,
            dtype="simulated",
            token_bytes=layout.token_bytes // layout.layers,
            block_tokens=layout.block_tokens,
        )
        self.planes = [Plane(TARGET, layout.layers, shape)]
        self._zeros = np.zeros(layout.block_bytes, np.uint8)

    def read_blocks(self, blocks: Sequence[int]) -> list[Rows]:
        return [np.broadcast_to(self._zeros, (len(blocks), len(self._zeros)))]

    def write_blocks(self, blocks: Sequence[int], planes: Sequence[Sequence[memoryview]]) -> None:
        """Nothing is held."""

    def write_layers(self, blocks: Sequence[int], first: int, rows: Sequence[memoryview]) -> None:
        """Nothing is held."""

    def write_planes(self, blocks: Sequence[int], planes: Sequence[Sequence[memoryview]]) -> None:
        """There are none."""
