"""Who computes what in the next step: decodes first, then prefill chunks, then admissions, under one token budget."""

from collections import deque

import msgspec

from netgain.errors import Overloaded, RequestRejected
from netgain.ledger.clock import Clock
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.sequence import Sequence, SequenceState


class Work(msgspec.Struct, frozen=True):
    """Compute `count` tokens of `sequence` from position `start`; the last 1 + `drafts` of them choose tokens if `samples`."""

    sequence: Sequence
    start: int
    count: int
    drafts: int
    prefill: bool
    samples: bool


class Admission(msgspec.Struct, frozen=True):
    """A waiting sequence that starts in this step, and how long the look for its cached prefix took."""

    sequence: Sequence
    lookup_start_s: float
    lookup_end_s: float


class StepPlan(msgspec.Struct, frozen=True):
    """What one step does. A sequence that was `preempted` lost its blocks and waits at the head of the queue."""

    work: tuple[Work, ...]
    admitted: tuple[Admission, ...]
    preempted: tuple[Sequence, ...]

    @property
    def tokens(self) -> int:
        return sum(work.count for work in self.work)


class Scheduler:
    """Continuous batching over a paged pool, with prefix reuse, chunked prefill and preemption by recompute.

    Owns the sequences between `add` and `finish` and the blocks they hold. Knows block keys and lengths, no tokens, no
    device. `schedule` and `commit` alternate; between them the plan's sequences may not be finished.
    """

    def __init__(
        self,
        pool: BlockPool,
        clock: Clock,
        *,
        block_tokens: int,
        max_batch_tokens: int,
        max_running: int,
        max_waiting: int,
        max_length: int,
        prefix_caching: bool = True,
    ) -> None:
        self.pool = pool
        self.block_tokens = block_tokens
        self.max_length = max_length
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of admission: the last is the youngest
        self._clock = clock
        self.max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._prefix_caching = prefix_caching

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence the pool could hold."""
        return self.pool.blocks * self.block_tokens

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises RequestRejected when it can never run, Overloaded when the queue is full."""
        if sequence.max_length > self.max_length:
            raise RequestRejected(
                f"prompt and max_tokens together are {sequence.max_length} tokens, the limit of this model is "
                f"{self.max_length}: shorten the prompt or lower max_tokens",
                "max_tokens",
            )
        if sequence.max_length > self.capacity_tokens:
            raise RequestRejected(
                f"prompt and max_tokens together are {sequence.max_length} tokens, the KV cache holds "
                f"{self.capacity_tokens}: lower max_tokens, or start the server with a larger cache.kv_tokens",
                "max_tokens",
            )
        if len(self.waiting) >= self._max_waiting:
            raise Overloaded(f"{len(self.waiting)} requests are waiting already (scheduler.max_waiting): retry later")
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """The sequence ended or is aborted, in whatever state: give its blocks back."""
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
        self._release(sequence)

    def schedule(self) -> StepPlan:
        """The next step's work; empty only when nothing waits or runs."""
        budget = self.max_batch_tokens
        work: list[Work] = []
        admitted: list[Admission] = []
        preempted: list[Sequence] = []
        for sequence in [s for s in self.running if s.state is SequenceState.DECODING]:
            if sequence.state is not SequenceState.DECODING:
                continue  # preempted by an older one in this very loop
            if budget < 1:
                break
            drafts = min(sequence.drafts, budget - 1)
            if self._missing(sequence, sequence.length + drafts) > self.pool.available:
                drafts = 0  # a guess is never worth another's blocks
            if not self._make_room(sequence, sequence.length + drafts, preempted):
                continue
            work.append(Work(sequence, sequence.computed, 1 + drafts, drafts, prefill=False, samples=True))
            budget -= 1 + drafts
        for sequence in [s for s in self.running if s.state is SequenceState.PREFILLING]:
            if sequence.state is SequenceState.PREFILLING and budget > 0:
                budget -= self._prefill(sequence, budget, work, preempted)
        while self.waiting and budget > 0 and len(self.running) < self._max_running and not preempted:
            sequence = self.waiting[0]
            admission = self._admit(sequence)
            if admission is None:
                break
            admitted.append(admission)
            budget -= self._prefill(sequence, budget, work, preempted)
        # a preemption may have hit a sequence that this plan had already given work
        kept = tuple(item for item in work if item.sequence.state is not SequenceState.WAITING)
        return StepPlan(kept, tuple(admitted), tuple(preempted))

    def commit(self, work: Work, tokens: int) -> None:
        """The step computed `work` and `tokens` new tokens were committed (0 for a chunk that chose none).

        The engine has extended `sequence.keys`; blocks whose tokens are all committed and computed become findable.
        """
        sequence = work.sequence
        sequence.drafts = 0
        if work.prefill:
            sequence.computed = work.start + work.count
            if work.samples:
                sequence.state = SequenceState.DECODING
        else:
            sequence.computed = work.start + tokens
        sequence.length += tokens
        if self._prefix_caching:
            full = min(sequence.computed // self.block_tokens, len(sequence.keys))
            for index in range(sequence.published, full):
                self.pool.publish(sequence.blocks[index], sequence.keys[index])
            sequence.published = max(sequence.published, full)

    def check(self) -> None:
        """Raise AssertionError unless pool and sequences agree on every block."""
        self.pool.check()
        held: dict[int, int] = {}
        for sequence in self.running:
            assert len(set(sequence.blocks)) == len(sequence.blocks), "a sequence holds a block twice"
            assert sequence.computed <= len(sequence.blocks) * self.block_tokens, "computed tokens have no block"
            for block in sequence.blocks:
                held[block] = held.get(block, 0) + 1
        for sequence in self.waiting:
            assert not sequence.blocks, "a waiting sequence holds blocks"
        assert self.pool.references() == held, "references differ from what sequences hold"

    def _admit(self, sequence: Sequence) -> Admission | None:
        start_s = self._clock.now()
        # the last token is always computed: its logits choose the next one
        reusable = (sequence.length - 1) // self.block_tokens
        found = self.pool.lookup(sequence.keys[:reusable]) if self._prefix_caching else []
        end_s = self._clock.now()
        missing = self._blocks_for(sequence.length) - len(found)
        if missing > self.pool.available - self.pool.cached_among(found):
            return None
        self.pool.acquire(found)
        sequence.blocks = list(found)
        sequence.published = len(found)
        sequence.computed = len(found) * self.block_tokens
        if not sequence.preemptions:  # what a preempted sequence finds again is its own work, not a hit
            sequence.cached_tokens = sequence.computed
        sequence.state = SequenceState.PREFILLING
        self.waiting.popleft()
        self.running.append(sequence)
        return Admission(sequence, start_s, end_s)

    def _prefill(self, sequence: Sequence, budget: int, work: list[Work], preempted: list[Sequence]) -> int:
        count = min(budget, sequence.length - sequence.computed)
        if not self._make_room(sequence, sequence.computed + count, preempted):
            return 0
        samples = sequence.computed + count == sequence.length
        work.append(Work(sequence, sequence.computed, count, 0, prefill=True, samples=samples))
        return count

    def _make_room(self, sequence: Sequence, tokens: int, preempted: list[Sequence]) -> bool:
        """Give `sequence` blocks for `tokens` tokens, preempting the youngest; False when it was preempted itself."""
        missing = self._missing(sequence, tokens)
        while missing > self.pool.available:
            victim = self.running[-1]
            self._preempt(victim)
            preempted.append(victim)
            if victim is sequence:
                return False
        if missing > 0:
            sequence.blocks += self.pool.allocate(missing)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.state = SequenceState.WAITING
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = sequence.published = sequence.drafts = 0

    def _missing(self, sequence: Sequence, tokens: int) -> int:
        return self._blocks_for(tokens) - len(sequence.blocks)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)
