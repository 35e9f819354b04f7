"""Runs drafting heads as an executor: segments of draft tokens in, choices and laws over the target's vocabulary out."""

from collections.abc import Sequence

import torch

from netgain.errors import ExecutorFailed
from netgain.serving.engine.answer import answer
from netgain.serving.engine.batch import Batch, Segment, SegmentResult, StepResult
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.decoder import Decoder
from netgain.serving.model.drafts.feature_head import FeatureHead
from netgain.serving.model.drafts.medusa import MedusaHeads
from netgain.serving.model.drafts.mtp import MtpModule
from netgain.serving.model.features import FeaturePlane
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.runtime.packing import PackedRows, Packer
from netgain.serving.runtime.torch_executor import greedy_result, is_plain


class FeatureHeadExecutor:
    """Executor over a feature head and its own KV. Features come from the plane that the target's executor fills; what the
    head expects at a position that the target has not computed is written there, until the target does.

    A head that never met a token without a feature before it, as `MtpModule`, has no row for the first token, and each later
    row stands one place earlier. The last place of a block then belongs to the first token of the next one; where requests
    share the block and not that token, each writes the place anew when it reads on, which may cost the other a draft."""

    def __init__(
        self, head: FeatureHead | MtpModule, target: Decoder, kv: PagedKV, features: FeaturePlane, kernels: Kernels
    ) -> None:
        self._head, self._target, self._features, self._kernels = head, target, features, kernels
        self._from_second = isinstance(head, MtpModule)
        self._kv: PagedKV | None = kv
        self._packer = Packer(target.device)

    async def execute(self, batch: Batch) -> StepResult:
        """Raises ExecutorFailed when the device cannot compute it."""
        if self._kv is None:
            raise ExecutorFailed("the executor is closed")
        try:
            packed = self._packer.pack(batch.segments)
            if self._from_second:
                packed = _without_first(packed)
                if not len(packed.tokens):
                    return StepResult(tuple(SegmentResult(()) for _ in batch.segments))
            before = self._features.before(packed.positions, packed.segment_of_row, packed.tables)
            places = packed.positions - 1 if self._from_second else packed.positions
            plan = self._kernels.plan(places, packed.segment_of_row, packed.tables, self._kv.block_tokens)
            embedded = self._target.embed(packed.tokens)
            logits, expected = self._head.forward(embedded, before, places, plan, self._kv, packed.wanted)
            _write(self._features, expected, packed)
        except RuntimeError as failure:
            raise ExecutorFailed(f"the draft head failed: {failure}") from failure
        return _answers(batch.segments, logits, self._head.ids, self._target.config.vocab, self._kernels)

    def close(self) -> None:
        self._kv = None


class MedusaExecutor:
    """Executor over Medusa heads: a segment that already holds i guesses is answered by head i, from the feature before the
    last token that is no guess."""

    def __init__(self, heads: MedusaHeads, target: Decoder, features: FeaturePlane, kernels: Kernels) -> None:
        self._heads, self._target, self._features, self._kernels = heads, target, features, kernels
        self._packer = Packer(target.device)

    async def execute(self, batch: Batch) -> StepResult:
        """All segments hold the same number of guesses. Raises ExecutorFailed when the device cannot compute it."""
        (number,) = {segment.drafts for segment in batch.segments}
        try:
            packed = self._packer.pack(batch.segments)
            rows = packed.wanted
            before = self._features.before(packed.positions[rows] - number, packed.segment_of_row[rows], packed.tables)
            logits = self._heads.forward(before, number)
        except RuntimeError as failure:
            raise ExecutorFailed(f"the Medusa heads failed: {failure}") from failure
        return _answers(batch.segments, logits, self._heads.ids, self._target.config.vocab, self._kernels)

    def close(self) -> None:
        """Nothing is held."""


def _without_first(packed: PackedRows) -> PackedRows:
    """Without the rows of position 0, none of which may be wanted."""
    kept = packed.positions > 0
    if bool(kept.all()):
        return packed
    return packed._replace(
        tokens=packed.tokens[kept],
        positions=packed.positions[kept],
        segment_of_row=packed.segment_of_row[kept],
        wanted=kept.cumsum(0)[packed.wanted] - 1,
    )


def _write(features: FeaturePlane, expected: torch.Tensor, packed: PackedRows) -> None:
    rows = packed.wanted
    features.write(expected, packed.positions[rows], packed.segment_of_row[rows], packed.tables)


def _answers(
    segments: Sequence[Segment], logits: torch.Tensor, ids: torch.Tensor, vocab: int, kernels: Kernels
) -> StepResult:
    """`logits` [choosing rows, len(ids)]: tokens that are none of `ids` cannot be chosen."""
    best: list[int] | None = None
    results = []
    row = 0
    for segment in segments:
        if not segment.rows:
            results.append(SegmentResult(()))
            continue
        if is_plain(segment):
            if best is None:
                best = kernels.argmax(logits).tolist()
            chosen = best[row : row + segment.rows]
            results.append(greedy_result([int(ids[place]) if place >= 0 else place for place in chosen]))
        else:
            full = torch.full((segment.rows, vocab), -torch.inf)
            full[:, ids.cpu()] = logits[row : row + segment.rows].float().cpu()
            results.append(answer(segment, full.numpy()))
        row += segment.rows
    return StepResult(tuple(results))
