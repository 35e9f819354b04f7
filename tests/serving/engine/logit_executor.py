"""A tiny language model with real logits for tests of sampling, penalties, grammars and log-probabilities under every
schedule: a row's logits depend on all tokens before it, read back from the paged memory, and answers come from the
production code that every executor with logits uses."""

import asyncio
import functools
import hashlib

import numpy as np

from netgain.serving.engine.answer import answer
from netgain.serving.engine.batch import Batch, StepResult


def logits_after(tokens, vocab: int) -> np.ndarray:
    """float32 [vocab], halves with many exact ties; looks mostly at recent tokens, so that drafts are sometimes right."""
    return _logits(tuple(tokens), vocab)


@functools.lru_cache(maxsize=50_000)
def _logits(tokens: tuple[int, ...], vocab: int) -> np.ndarray:
    near = hashlib.blake2b(repr((tokens[-2:], len(tokens) // 16)).encode(), digest_size=8).digest()
    far = hashlib.blake2b(repr(tokens).encode(), digest_size=8).digest()
    values = np.random.default_rng(int.from_bytes(near, "little")).integers(-6, 7, vocab)
    values[np.random.default_rng(int.from_bytes(far, "little")).integers(0, vocab, 2)] += 4
    logits = values.astype(np.float32) / 2
    logits.setflags(write=False)
    return logits


class LogitExecutor:
    """`poison` holds positions whose logits are NaN; with `pauses` every step lets other tasks run first."""

    def __init__(self, blocks: int, block_tokens: int, vocab: int, *, poison=frozenset(), pauses=False) -> None:
        self.memory: list[int | None] = [None] * (blocks * block_tokens)
        self.tokens = 0
        self.most_rows = 0
        self.segments = []
        self._block_tokens = block_tokens
        self._vocab = vocab
        self._poison = poison
        self._pauses = pauses

    async def execute(self, batch: Batch) -> StepResult:
        self.tokens += batch.tokens
        if self._pauses:
            await asyncio.sleep(0)
        self.most_rows = max(self.most_rows, sum(len(s.scored) + s.rows for s in batch.segments))
        return StepResult(tuple(self._answer(segment) for segment in batch.segments))

    def close(self) -> None:
        self.memory = []

    def _answer(self, segment):
        size = self._block_tokens

        def slot(position: int) -> int:
            return segment.block_table[position // size] * size + position % size

        for offset, token in enumerate(segment.tokens):
            self.memory[slot(segment.start + offset)] = token
        end = segment.start + len(segment.tokens)
        first = segment.start + segment.scored_from
        lasts = [*range(first, first + len(segment.scored)), *range(end - segment.rows, end)]
        assert len(set(lasts)) == len(lasts)
        assert all(segment.start <= last < end for last in lasts), "a row without its token has no logits"
        rows = self._rows([[self.memory[slot(i)] for i in range(last + 1)] for last in lasts])
        for row, last in enumerate(lasts):
            if last + 1 in self._poison:
                rows[row, 3] = np.nan
        return answer(segment, rows)

    def _rows(self, contexts):
        rows = np.zeros((len(contexts), self._vocab), dtype=np.float32)
        for row, context in enumerate(contexts):
            rows[row] = logits_after(context, self._vocab)
        return rows
