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
    """Executor over a feature head and its own KV. Features come from the plane that the target's executor fills; behind a guess,
    where the target has computed nothing, what the head expected there in the pass before stands in.

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
        self._expected: tuple[list[str], torch.Tensor] | None = None  # of the last pass, by request

    async def execute(self, batch: Batch) -> StepResult:
        """All segments hold the same number of guesses: with some, each goes on from where the pass before left it. Raises
        ExecutorFailed when the device cannot compute it."""
        if self._kv is None:
            raise ExecutorFailed("the executor is closed")
        (guesses,) = {segment.drafts for segment in batch.segments}
        try:
            packed = self._packer.pack(batch.segments)
            if self._from_second:
                packed = _without_first(packed)
                if not len(packed.tokens):
                    return StepResult(tuple(SegmentResult(()) for _ in batch.segments))
            places = packed.positions - 1 if self._from_second else packed.positions
            plan = self._kernels.plan(places, packed.segment_of_row, packed.tables, self._kv.block_tokens)
            before = self._before_guesses(batch.segments) if guesses else self._before(packed)
            embedded = self._target.embed(packed.tokens)
            logits, expected = self._head.forward(embedded, before, places, plan, self._kv, packed.wanted)
            if batch.chain > 1:
                return _chosen(
                    batch.segments, self._chain(packed, logits, expected, batch.chain, self._kv), self._head.ids
                )
        except RuntimeError as failure:
            raise ExecutorFailed(f"the draft head failed: {failure}") from failure
        self._expected = [segment.request_id for segment in batch.segments if segment.rows], expected
        return _answers(batch.segments, logits, self._head.ids, self._target.config.vocab, self._kernels)

    def _chain(
        self, packed: PackedRows, logits: torch.Tensor, expected: torch.Tensor, passes: int, kv: PagedKV
    ) -> list[list[int]]:
        """From the first pass on: which of its tokens the head chooses, per pass and row."""
        kernels, rows = self._kernels, packed.wanted
        positions, segments = packed.positions[rows], packed.segment_of_row[rows]
        best = kernels.argmax(logits)
        chosen = [best.tolist()]
        for _ in range(passes - 1):
            positions = positions + 1
            places = positions - 1 if self._from_second else positions
            plan = kernels.plan(places, segments, packed.tables, kv.block_tokens)
            embedded = self._target.embed(self._head.ids[best])
            logits, expected = self._head.forward(embedded, expected, places, plan, kv, None)
            best = kernels.argmax(logits)
            chosen.append(best.tolist())
        return chosen

    def _before(self, packed: PackedRows) -> torch.Tensor:
        return self._head.fuse(self._features.before(packed.positions, packed.segment_of_row, packed.tables))

    def _before_guesses(self, segments: Sequence[Segment]) -> torch.Tensor:
        """One row each."""
        if self._expected is None:
            raise ExecutorFailed("guesses cannot be gone on from before there were any")
        names, expected = self._expected
        wanted = [segment.request_id for segment in segments]
        return expected if wanted == names else expected[[names.index(name) for name in wanted]]

    def close(self) -> None:
        self._kv = None


class MedusaExecutor:
    """Executor over Medusa heads: a segment that already holds i guesses is answered by head i, from the feature before the
    last token that is no guess."""

    def __init__(self, heads: MedusaHeads, target: Decoder, features: FeaturePlane, kernels: Kernels) -> None:
        self._heads, self._target, self._features, self._kernels = heads, target, features, kernels
        self._packer = Packer(target.device)
        self._before: tuple[list[str], torch.Tensor] | None = None  # of the first pass, by request

    async def execute(self, batch: Batch) -> StepResult:
        """All segments hold the same number of guesses. Raises ExecutorFailed when the device cannot compute it."""
        (number,) = {segment.drafts for segment in batch.segments}
        try:
            features = self._features_of(batch.segments, number)
            if batch.chain > 1:
                each = (self._heads.forward(features, ahead) for ahead in range(batch.chain))
                chosen = [self._kernels.argmax(logits).tolist() for logits in each]
                return _chosen(batch.segments, chosen, self._heads.ids)
            logits = self._heads.forward(features, number)
        except RuntimeError as failure:
            raise ExecutorFailed(f"the Medusa heads failed: {failure}") from failure
        return _answers(batch.segments, logits, self._heads.ids, self._target.config.vocab, self._kernels)

    def _features_of(self, segments: Sequence[Segment], number: int) -> torch.Tensor:
        """Read with the first guess; the same for all."""
        wanted = [segment.request_id for segment in segments]
        if not number or self._before is None:
            packed = self._packer.pack(segments)
            rows = packed.wanted
            positions = packed.positions[rows] - number
            tapped = self._features.before(positions, packed.segment_of_row[rows], packed.tables)
            self._before = wanted, self._heads.fuse(tapped)
        names, features = self._before
        return features if wanted == names else features[[names.index(name) for name in wanted]]

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


def _chosen(segments: Sequence[Segment], places: Sequence[Sequence[int]], ids: torch.Tensor) -> StepResult:
    """`places` in `ids`, per pass and choosing segment."""
    results = []
    row = 0
    for segment in segments:
        if not segment.rows:
            results.append(SegmentResult(()))
            continue
        own = [chosen[row] for chosen in places]
        results.append(greedy_result([int(ids[place]) if place >= 0 else place for place in own]))
        row += 1
    return StepResult(tuple(results))


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
