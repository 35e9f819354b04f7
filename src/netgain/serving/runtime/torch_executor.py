"""Runs batches on real weights: packs segments into flat rows, one forward pass, one choice per row."""

import time
from collections.abc import Container, Sequence

import msgspec
import torch

from netgain.errors import ExecutorFailed
from netgain.serving.engine.answer import answer
from netgain.serving.engine.batch import Batch, Segment, SegmentResult, StepResult
from netgain.serving.engine.sampling import is_greedy
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.decoder import Decoder
from netgain.serving.model.features import FeaturePlane
from netgain.serving.model.grouped_forward import GroupedForward
from netgain.serving.model.kernels.protocol import AttentionPlan, Kernels
from netgain.serving.runtime.blending.blender import Blender
from netgain.serving.runtime.packing import PackedRows, Packer

# Rows of logits that are kept from step to step; a step that scores prompts may have more, for once.
KEPT_ROWS = 64


class TorchExecutor:
    """Executor over a model, its KV memory and one Kernels implementation, on the model's device.

    What the model's taps give, from which heads draft, is kept in `features`.
    Of a draft that knows more ids than its target, only the first `vocab` may be chosen. `blender` computes segments with
    chunks."""

    def __init__(
        self,
        model: Decoder,
        kv: PagedKV,
        kernels: Kernels,
        features: FeaturePlane | None = None,
        vocab: int | None = None,
        blender: Blender | None = None,
    ) -> None:
        self._model = model
        self._kv: PagedKV | None = kv
        self._kernels = kernels
        self._features = features
        self._vocab = None if vocab is None or vocab >= model.config.vocab else vocab
        self._blender = blender
        self._packer = Packer(model.device)
        self._grouped: GroupedForward | None = None
        self._logits = torch.empty(0, model.config.vocab, device=model.device)

    async def execute(self, batch: Batch) -> StepResult:
        """One forward pass over the batch's rows. Raises ExecutorFailed when the device cannot compute it."""
        if self._kv is None:
            raise ExecutorFailed("the executor is closed")
        if any(segment.chunks is not None for segment in batch.segments):
            return await self._execute_apart(batch, self._kv)
        try:
            packed = self._packer.pack(batch.segments)
            if batch.arriving:
                return await self._execute_arriving(batch, packed, self._kv)
            started_s = time.monotonic()
            logits = self._forward(packed, self._kv)
            forward_s = time.monotonic() - started_s
        except RuntimeError as failure:  # what torch raises for out-of-memory and device faults
            raise ExecutorFailed(f"the forward pass failed: {failure}") from failure
        return StepResult(self._answers(batch.segments, packed.wanted_of, logits), forward_s)

    async def _execute_arriving(self, batch: Batch, packed: PackedRows, kv: PagedKV) -> StepResult:
        """One forward pass that waits before each group of layers until it has the KV that it reads."""
        starts = batch.arriving[0].starts
        if self._grouped is None or self._grouped.starts != starts:
            self._grouped = GroupedForward(self._model, starts)
        tokens, positions, segment_of_row, tables, wanted, _ = packed
        plan = self._kernels.plan(positions, segment_of_row, tables, kv.block_tokens)
        tapped = self._taps_of(packed)
        self._grouped.begin(tokens, positions, plan, kv, wanted, tapped)
        missing: set[str] = set()
        forward_s = 0.0
        for group in range(len(starts)):
            for one in batch.arriving:
                if one.request_id not in missing and not await one.ready(group):
                    missing.add(one.request_id)
            if len(missing) == len(batch.segments):
                return StepResult(tuple(SegmentResult(()) for _ in batch.segments), forward_s)
            started_s = time.monotonic()
            self._grouped.run(group)
            forward_s += time.monotonic() - started_s
        started_s = time.monotonic()
        logits = self._kept(self._grouped.finish(self._room(len(wanted))), tapped, plan)
        forward_s += time.monotonic() - started_s
        return StepResult(self._answers(batch.segments, packed.wanted_of, logits, missing), forward_s)

    async def _execute_apart(self, batch: Batch, kv: PagedKV) -> StepResult:
        """Segments with chunks are computed one by one, the others together."""
        for one in batch.arriving:  # all of it comes first: blended passes are not held up between layers
            for group in range(len(one.starts)):
                if not await one.ready(group):
                    break
        plain = tuple(segment for segment in batch.segments if segment.chunks is None)
        started_s = time.monotonic()
        done: dict[str, SegmentResult] = {}
        try:
            if plain:
                packed = self._packer.pack(plain)
                answers = self._answers(plain, packed.wanted_of, self._forward(packed, kv))
                done = {segment.request_id: result for segment, result in zip(plain, answers, strict=True)}
            for segment in batch.segments:
                if segment.chunks is None:
                    continue
                if self._blender is None:
                    raise ExecutorFailed("this executor was built without blending")
                blended = self._blender.run(segment, kv)
                (result,) = self._answers((segment,), (len(blended.logits),), blended.logits)
                done[segment.request_id] = msgspec.structs.replace(result, blending=blended.counts)
        except RuntimeError as failure:
            raise ExecutorFailed(f"the forward pass failed: {failure}") from failure
        results = tuple(done[segment.request_id] for segment in batch.segments)
        return StepResult(results, time.monotonic() - started_s)

    def _answers(
        self,
        segments: Sequence[Segment],
        wanted_of: Sequence[int],
        logits: torch.Tensor,
        missing: Container[str] = (),
    ) -> tuple[SegmentResult, ...]:
        """From the rows of logits of all segments, one after the other; those of the requests `missing` are not read."""
        choices: list[int] | None = None  # of every row, once a greedy one is met
        results = []
        row = 0
        for segment, count in zip(segments, wanted_of, strict=True):
            if not count or segment.request_id in missing:
                results.append(SegmentResult(()))
            elif is_plain(segment):
                if choices is None:
                    choices = self._kernels.argmax(logits).tolist()
                results.append(greedy_result(choices[row : row + count]))
            else:
                results.append(answer(segment, logits[row : row + count].cpu().numpy()))
            row += count
        return tuple(results)

    def close(self) -> None:
        self._kv = None

    def _forward(self, packed: PackedRows, kv: PagedKV) -> torch.Tensor:
        """Logits [wanted rows, vocab], valid until the next step."""
        tokens, positions, segment_of_row, tables, wanted, _ = packed
        plan = self._kernels.plan(positions, segment_of_row, tables, kv.block_tokens)
        tapped = self._taps_of(packed)
        logits = self._model.forward(tokens, positions, plan, kv, wanted, self._room(len(wanted)), tapped)
        return self._kept(logits, tapped, plan)

    def _taps_of(self, packed: PackedRows) -> torch.Tensor | None:
        """Room for what the model's taps give for these rows; None where nothing drafts from it."""
        if self._features is None:
            return None
        return torch.empty(len(packed.tokens), self._features.width, device=self._model.device)

    def _kept(self, logits: torch.Tensor, tapped: torch.Tensor | None, plan: AttentionPlan) -> torch.Tensor:
        """The logits of the ids that may be chosen; what was tapped goes to the features."""
        if self._features is not None and tapped is not None:
            self._features.write(tapped, plan)
        return logits if self._vocab is None else logits[:, : self._vocab].contiguous()

    def _room(self, rows: int) -> torch.Tensor | None:
        if rows > KEPT_ROWS:
            return None
        if rows > len(self._logits):
            self._logits = self._logits.new_empty(min(KEPT_ROWS, 2 * rows), self._logits.shape[1])
        return self._logits[:rows]


def is_plain(segment: Segment) -> bool:
    """Greedy, and nothing but the choices is asked for."""
    sampling = segment.sampling
    return (
        is_greedy(sampling)
        and segment.edits is None
        and sampling.logprobs is None
        and not segment.scored
        and not segment.laws
    )


def greedy_result(choices: list[int]) -> SegmentResult:
    if min(choices) < 0:
        return SegmentResult((), error="the model's logits are not numbers: weights or KV are damaged")
    return SegmentResult(tuple(choices))
