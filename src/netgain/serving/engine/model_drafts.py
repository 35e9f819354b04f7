"""Drafts from a model: an executor of its own over the target's block tables, one chain of tokens per request.

The draft's KV lies in planes beside the target's, addressed by the same blocks. So a rejected tail needs no undoing, a
preemption none either, and a prefix found in the cache serves the draft too, as far as the draft had read it. What it had
not read is read when a request first wants drafts: those that never speculate pay nothing.
"""

import logging
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from netgain.errors import ExecutorFailed
from netgain.ledger.stage import Stage
from netgain.serving.engine.batch import Batch, Segment, SegmentResult
from netgain.serving.engine.generation import Generation
from netgain.serving.engine.protocols import Draft, Executor
from netgain.serving.engine.request import SamplingParams
from netgain.serving.engine.sampling import is_greedy
from netgain.serving.engine.step_plan import Work

_log = logging.getLogger(__name__)


class DraftLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a draft model can do beside its target. `context` is the longest text it can read, `vocab` how many ids the
    target knows (an executor that can choose among more is told so; an id beyond ends a draft). `rows` bounds the tokens
    that one step may have it catch up on.

    `keeps_guesses` says whether the KV of a drafted token that turns out right stands as it is: it does for a model of its
    own, not for a head that drafted from features which it had to guess. Without `reads` it has no KV, and sees no token but
    the last. `chains`: its executor makes whole chains of greedy drafts in one call, whose guesses are not kept."""

    context: int
    vocab: int
    rows: int
    keeps_guesses: bool = True
    reads: bool = True
    chains: bool = False


class _Reader:
    """How far the draft has read one request: positions before `read` have final KV, then come `guesses`, the tokens
    it was fed on trust."""

    __slots__ = ("guesses", "read", "sampling")

    def __init__(self, read: int, sampling: SamplingParams) -> None:
        self.read = read
        self.guesses: list[int] = []
        self.sampling = sampling


class _Chain:
    """One request's drafts while they are made."""

    __slots__ = ("count", "end", "generation", "laws", "reader", "tokens", "work")

    def __init__(self, work: Work, generation: Generation, reader: _Reader, count: int, end: int) -> None:
        self.work = work
        self.generation = generation
        self.reader = reader
        self.count = count
        self.end = end  # of what it reads before its first draft
        self.tokens: list[int] = []
        self.laws: list[np.ndarray] = []

    @property
    def wants_more(self) -> bool:
        return len(self.tokens) < self.count

    @property
    def plain(self) -> bool:
        """Greedy, and nothing changes the logits."""
        return self.generation.history is None and is_greedy(self.reader.sampling)


class ModelDrafts:
    """Owns the draft's executor. `written` comes between a step's schedule and its execution, for every step of the engine, and
    `draft` behind it, if there is room for drafts."""

    def __init__(self, executor: Executor, limits: DraftLimits, *, blocks: int, block_tokens: int) -> None:
        self.executor = executor
        self.faults = 0
        self._limits = limits
        self._block_tokens = block_tokens
        self._filled = bytearray(blocks)  # 1: the draft's KV of the whole block is final
        self._readers: dict[str, _Reader] = {}

    def written(self, plan: Sequence[Work]) -> None:
        """These blocks get new content, which the draft has not read."""
        size, filled = self._block_tokens, self._filled
        for work in plan:
            first, last = work.start // size, (work.start + work.count - 1) // size
            for index in range(first, last + 1):
                filled[work.sequence.blocks[index]] = 0

    async def draft(self, plan: Sequence[Work], generations: Mapping[str, Generation], laws: bool) -> dict[str, Draft]:
        """Up to `work.drafts` tokens for every request that the plan has room for, drawn as the target would draw them, with
        `laws` if the verifier needs them. A request whose text the draft has not caught up with gets an empty draft.

        A draft model that fails costs drafts, not answers: it is counted in `faults`, and the step goes on without.
        """
        chains = self._catch_up(plan, generations)
        try:
            await self._read(chains, laws)
        except ExecutorFailed as failure:
            self._failed(chains, str(failure))
        return {chain.work.sequence.id: _drafted(chain) for chain in chains}

    def rewritten(self, blocks: Sequence[int]) -> None:
        """The target's KV of these blocks was loaded; the draft has not read their tokens."""
        for block in blocks:
            self._filled[block] = 0

    def forget(self, request_id: str) -> None:
        """The request ended or lost its blocks; unknown ids are ignored."""
        self._readers.pop(request_id, None)

    def close(self) -> None:
        self.executor.close()

    def _catch_up(self, plan: Sequence[Work], generations: Mapping[str, Generation]) -> list[_Chain]:
        """Who drafts in this step, each with what it has to read first; the rows they read together are bounded."""
        budget = self._limits.rows
        chains = []
        for work in plan:
            # the last draft is not read, and the one before it must lie within the draft's context
            count = min(work.drafts, self._limits.context - work.sequence.length + 1)
            if count < 1 or budget < 1:
                continue
            generation = generations[work.sequence.id]
            reader = self._readers.get(work.sequence.id) or self._start(work, generation)
            self._settle(reader, generation.tokens, work.sequence.blocks)
            end = min(work.sequence.length, reader.read + budget)
            budget -= end - reader.read
            chains.append(_Chain(work, generation, reader, count if end == work.sequence.length else 0, end))
        return chains

    def _start(self, work: Work, generation: Generation) -> _Reader:
        filled = 0
        for block in work.sequence.blocks:
            if not self._filled[block]:
                break
            filled += 1
        sampling = generation.request.sampling
        if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            sampling = msgspec.structs.replace(sampling, logprobs=None, prompt_logprobs=None)
        read = min(filled * self._block_tokens, work.sequence.length - 1)
        reader = self._readers[work.sequence.id] = _Reader(read, sampling)
        return reader

    def _settle(self, reader: _Reader, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Guesses that were committed count as read, up to the last token, which is always read anew: it chooses."""
        last = len(tokens) - 1
        was = reader.read = min(reader.read, last) if self._limits.reads else last
        if self._limits.keeps_guesses:
            for token in reader.guesses:
                if reader.read >= last or tokens[reader.read] != token:
                    break
                reader.read += 1
        reader.guesses = []
        self._mark(blocks, was, reader.read)

    def _mark(self, blocks: Sequence[int], start: int, end: int) -> None:
        for index in range(start // self._block_tokens, end // self._block_tokens):
            self._filled[blocks[index]] = 1

    async def _read(self, chains: Sequence[_Chain], laws: bool) -> None:
        """Feed each request what is missing, then token after token of its own drafts."""
        segments = [
            self._segment(chain, chain.generation.tokens[chain.reader.read : chain.end], chain.reader.read, laws)
            for chain in chains
        ]
        live = list(chains)
        depths = {chain.count for chain in chains if chain.count} or {
            1
        }  # one that may draft less has no blocks for more
        if segments and self._limits.chains and not laws and len(depths) == 1 and all(chain.plain for chain in chains):
            (depth,) = depths
            result = await self.executor.execute(Batch(tuple(segments), chain=depth))
            for chain, segment, part in zip(live, segments, result.segments, strict=True):
                self._take(chain, segment, part)
            return
        while segments:
            result = await self.executor.execute(Batch(tuple(segments)))
            for chain, segment, part in zip(live, segments, result.segments, strict=True):
                self._take(chain, segment, part)
            live = [chain for chain in live if chain.tokens and chain.wants_more]
            segments = [
                self._segment(chain, chain.tokens[-1:], chain.end + len(chain.tokens) - 1, laws) for chain in live
            ]

    def _segment(self, chain: _Chain, tokens: Sequence[int], start: int, laws: bool) -> Segment:
        chooses = chain.wants_more
        history = chain.generation.history
        edits = None
        if chooses and history is not None:
            edits = history.edits(tuple(chain.tokens), None).last(1 + len(chain.tokens))
        return Segment(
            request_id=chain.work.sequence.id,
            stage=Stage.DRAFT,
            tokens=tuple(tokens),
            start=start,
            block_table=chain.work.sequence.blocks,
            rows=1 if chooses else 0,
            drafts=len(chain.tokens),
            sampling=chain.reader.sampling,
            choice=chain.generation.request.choice,
            laws=laws and chooses,
            edits=edits,
        )

    def _take(self, chain: _Chain, segment: Segment, part: SegmentResult) -> None:
        reader = chain.reader
        if part.error is not None:
            self._failed([chain], part.error)
            chain.count = 0
            return
        if segment.start < chain.end:
            self._mark(segment.block_table, reader.read, reader.read + len(segment.tokens))
            reader.read += len(segment.tokens)
        else:
            reader.guesses += segment.tokens
        if not segment.rows:
            return
        for token in part.choices[: chain.count]:
            if token >= self._limits.vocab:
                chain.count = 0
                return
            chain.tokens.append(token)
        if part.laws is not None:
            chain.laws.append(_fitted(part.laws[0], self._limits.vocab))

    def _failed(self, chains: Sequence[_Chain], why: str) -> None:
        if not self.faults:
            _log.warning(
                "the draft model failed; answers go on without its drafts, further faults are counted: %s", why
            )
        self.faults += 1
        for chain in chains:
            chain.tokens, chain.laws = [], []
            self.forget(chain.work.sequence.id)


def _drafted(chain: _Chain) -> Draft:
    return Draft(tuple(chain.tokens), np.stack(chain.laws) if chain.laws else None)


def _fitted(law: np.ndarray, vocab: int) -> np.ndarray:
    """The law over the target's ids: a draft may know fewer, or have room for more."""
    if len(law) < vocab:
        return np.concatenate((law, np.zeros(vocab - len(law))))
    return law[:vocab]
