"""A tiny exact language model for bookkeeping tests: the next token is a hash of every token before it, read back from
the paged memory that the block tables point to. Any slip in blocks, positions or rollback changes the text."""

import hashlib

import numpy as np

from netgain.errors import ExecutorFailed
from netgain.serving.engine.batch import Batch, SegmentResult, StepResult
from netgain.serving.tiers.kv_store import Plane
from netgain.serving.tiers.object import Shape


class RecallExecutor:
    def __init__(self, blocks: int, block_tokens: int, vocab: int, *, fail_at: int | None = None) -> None:
        self.memory: list[int | None] = [None] * (blocks * block_tokens)
        self.steps = 0
        self.tokens = 0
        self._block_tokens = block_tokens
        self._vocab = vocab
        self._fail_at = fail_at

    async def execute(self, batch: Batch) -> StepResult:
        self.steps += 1
        self.tokens += batch.tokens
        if self.steps == self._fail_at:
            raise ExecutorFailed("the device fell off the bus")
        results = []
        for segment in batch.segments:
            assert segment.rows <= len(segment.tokens), "a row without its token has no logits"

            def slot(position: int, table=segment.block_table) -> int:
                return table[position // self._block_tokens] * self._block_tokens + position % self._block_tokens

            for offset, token in enumerate(segment.tokens):
                self.memory[slot(segment.start + offset)] = token
            end = segment.start + len(segment.tokens)
            choices = tuple(
                next_token([self.memory[slot(i)] for i in range(length)], self._vocab)
                for length in range(end - segment.rows + 1, end + 1)
            )
            results.append(SegmentResult(choices))
        return StepResult(tuple(results))

    def close(self) -> None:
        self.memory = []


def next_token(tokens, vocab: int) -> int:
    # short memory of its own output makes it repeat itself, so that n-gram drafts are sometimes right
    digest = hashlib.blake2b(repr((tokens[:3], tokens[-2:], len(tokens) // 24)).encode(), digest_size=4).digest()
    whole = hashlib.blake2b(repr(tokens).encode(), digest_size=4).digest()
    surprise = int.from_bytes(whole, "little") % 8 == 0
    return int.from_bytes(whole if surprise else digest, "little") % vocab


def continuation(prompt, count: int, vocab: int) -> tuple[int, ...]:
    """What the model says to `prompt`, computed without any engine."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, vocab))
    return tuple(tokens[len(prompt) :])


class RecallMemory:
    """Its memory as bytes: a token is four bytes, an unwritten slot -1."""

    def __init__(self, executor: RecallExecutor, block_tokens: int) -> None:
        shape = Shape(kv_heads=1, head_dim=1, dtype="int32", token_bytes=4, block_tokens=block_tokens)
        self.planes = [Plane("target", 1, shape)]
        self._executor = executor
        self._block_tokens = block_tokens

    def read_blocks(self, blocks):
        size = self._block_tokens
        memory = [
            -1 if token is None else token for block in blocks for token in self._executor.memory[block * size :][:size]
        ]
        return [np.array(memory, np.int32).view(np.uint8).reshape(len(blocks), 4 * size)]

    def write_blocks(self, blocks, planes) -> None:
        size = self._block_tokens
        for block, row in zip(blocks, planes[0], strict=True):
            self._executor.memory[block * size : (block + 1) * size] = np.frombuffer(row, np.int32).tolist()
