"""A tiny exact language model for bookkeeping tests: the next token is a hash of every token before it, read back from
the paged memory that the block tables point to. Any slip in blocks, positions or rollback changes the text."""

import hashlib

import numpy as np

from netgain.errors import ExecutorFailed
from netgain.serving.engine.batch import Batch, SegmentResult, StepResult
from netgain.serving.tiers.object import Shape
from netgain.serving.tiers.planes import Plane


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
        groups = len(batch.arriving[0].starts) if batch.arriving else 1
        missing = set()
        for group in range(groups):
            for one in batch.arriving:
                if one.request_id not in missing and not await one.ready(group):
                    missing.add(one.request_id)
            await self.works(batch, 1 / groups)
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

    async def works(self, batch: Batch, share: float) -> None:
        """Takes the time of so much of a step: here, none."""

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
    """Its memory as bytes: a token is four bytes, an unwritten slot -1. Of several layers, which are 1, 2 or 4, each has some of
    the four, and so many others that headers are small beside them."""

    def __init__(self, executor: RecallExecutor, block_tokens: int, layers: int = 1) -> None:
        self._token_bytes = 4 if layers == 1 else 8192
        shape = Shape(kv_heads=1, head_dim=1, dtype="int32", token_bytes=self._token_bytes, block_tokens=block_tokens)
        self.planes = [Plane("target", layers, shape)]
        self._executor = executor
        self._block_tokens = block_tokens
        self._layers = layers

    def read_blocks(self, blocks):
        used = 4 // self._layers
        rows = np.zeros((len(blocks), self._layers, self._block_tokens, self._token_bytes), np.uint8)
        for row, block in zip(rows, blocks, strict=True):
            row[..., :used] = self._bytes(block).swapaxes(0, 1)
        return [rows.reshape(len(blocks), -1)]

    def write_blocks(self, blocks, planes) -> None:
        self.write_layers(blocks, 0, planes[0])

    def write_layers(self, blocks, first, rows) -> None:
        size = self._block_tokens
        for block, row in zip(blocks, rows, strict=True):
            memory = self._bytes(block)
            layers = np.frombuffer(row, np.uint8).reshape(-1, size, self._token_bytes)
            memory[:, first : first + len(layers)] = layers[..., : 4 // self._layers].swapaxes(0, 1)
            tokens = np.ascontiguousarray(memory).reshape(-1).view(np.int32).tolist()
            self._executor.memory[block * size : (block + 1) * size] = tokens

    def write_planes(self, blocks, planes) -> None:
        assert not planes

    def _bytes(self, block: int):
        """uint8 [tokens of the block, layers, bytes that are used of a token in a layer]"""
        size = self._block_tokens
        tokens = [-1 if token is None else token for token in self._executor.memory[block * size :][:size]]
        return np.array(tokens, np.int32).view(np.uint8).reshape(size, self._layers, 4 // self._layers)
