"""Runs batches on real weights: packs segments into flat rows, one forward pass, one choice per row."""

from math import isfinite

import numpy as np
import torch

from netgain.errors import ExecutorFailed
from netgain.serving.engine.answer import answer
from netgain.serving.engine.batch import Batch, Segment, SegmentResult, StepResult
from netgain.serving.engine.sampling import is_greedy
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.decoder import Decoder
from netgain.serving.model.kernels.protocol import Kernels


class TorchExecutor:
    """Executor over a model, its KV memory and one Kernels implementation, on the model's device."""

    def __init__(self, model: Decoder, kv: PagedKV, kernels: Kernels) -> None:
        self._model = model
        self._kv: PagedKV | None = kv
        self._kernels = kernels
        self._device = model.device

    async def execute(self, batch: Batch) -> StepResult:
        """One forward pass over the batch's rows. Raises ExecutorFailed when the device cannot compute it."""
        if self._kv is None:
            raise ExecutorFailed("the executor is closed")
        try:
            logits = self._forward(batch, self._kv)
        except RuntimeError as failure:  # what torch raises for out-of-memory and device faults
            raise ExecutorFailed(f"the forward pass failed: {failure}") from failure
        results = []
        row = 0
        greedy = _Greedy(logits)
        for segment in batch.segments:
            count = len(segment.scored) + segment.rows
            results.append(_answer(segment, logits[row : row + count], greedy, row))
            row += count
        return StepResult(tuple(results))

    def close(self) -> None:
        self._kv = None

    @torch.inference_mode()
    def _forward(self, batch: Batch, kv: PagedKV) -> torch.Tensor:
        segments = batch.segments
        counts = [len(segment.tokens) for segment in segments]
        ends = np.cumsum(counts)
        starts = [segment.start for segment in segments]
        tokens = np.fromiter((token for s in segments for token in s.tokens), np.int64, int(ends[-1]))
        segment_of_row = np.repeat(np.arange(len(segments)), counts)
        positions = np.arange(ends[-1]) + np.repeat(np.array(starts) - (ends - counts), counts)
        tables = np.full((len(segments), max(len(s.block_table) for s in segments)), -1, np.int32)
        for index, segment in enumerate(segments):
            tables[index, : len(segment.block_table)] = segment.block_table
        rows = np.concatenate([_rows(segment, int(end)) for segment, end in zip(segments, ends, strict=True)])
        plan = self._kernels.plan(self._put(positions), self._put(segment_of_row), self._put(tables), kv.block_tokens)
        return self._model.forward(self._put(tokens), self._put(positions), plan, kv, self._put(rows))

    def _put(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


class _Greedy:
    """The highest logit of every row and its lowest index, computed at most once per step."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits
        self._values: list[float] | None = None
        self._indices: list[int] = []

    def __call__(self, start: int, count: int) -> tuple[int, ...] | None:
        """The choices of `count` rows from `start`; None where a row's highest is no finite number."""
        if self._values is None:
            values, indices = self._logits.max(dim=-1)
            self._values, self._indices = values.tolist(), indices.tolist()
        if not all(map(isfinite, self._values[start : start + count])):
            return None
        return tuple(self._indices[start : start + count])


def _rows(segment: Segment, end: int) -> np.ndarray:
    """Which of the batch's tokens need logits, for the segment whose last one is `end` - 1."""
    choosing = np.arange(end - segment.rows, end)
    if not segment.scored:
        return choosing
    first = end - len(segment.tokens) + segment.scored_from
    return np.concatenate((np.arange(first, first + len(segment.scored)), choosing))


def _answer(segment: Segment, logits: torch.Tensor, greedy: _Greedy, row: int) -> SegmentResult:
    if not len(logits):
        return SegmentResult(())
    if _is_plain(segment):
        choices = greedy(row, segment.rows)
        if choices is None:
            return SegmentResult((), error="the model's logits are not numbers: weights or KV are damaged")
        return SegmentResult(choices)
    return answer(segment, logits.cpu().numpy())


def _is_plain(segment: Segment) -> bool:
    """Greedy, and nothing but the choices is asked for."""
    sampling = segment.sampling
    return (
        is_greedy(sampling)
        and segment.edits is None
        and sampling.logprobs is None
        and not segment.scored
        and not segment.laws
    )
