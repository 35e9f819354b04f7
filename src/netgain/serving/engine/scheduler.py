"""Who computes what in the next step: decodes first, then prefill chunks, then admissions, under one token budget."""

import itertools
from bisect import insort
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows

from netgain.errors import Overloaded, RequestRejected
from netgain.ledger.clock import Clock
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.sequence import Sequence, SequenceState
from netgain.serving.engine.step_plan import Admission, Published, StepPlan, Work

# Logits rows that one step may compute for scoring prompts: [rows, vocab] floats have to fit memory at any step budget.
SCORED_PER_STEP = 256


class Scheduler:
    """Continuous batching over a paged pool, with prefix reuse, chunked prefill and preemption by recompute.

    Who waits is admitted by priority (lower values first), equals in order of arrival; a preempted one keeps its place among
    its equals. When blocks run out, the highest priority value loses them first, the youngest among equals. A waiting
    request never preempts a running one, so a steady stream of lower values starves the higher ones: that is what it asks.

    A sequence whose prefix is in tiers gets its blocks and is LOADING until `loaded` is called; the others go on. While
    tiers are asked about one (`to_load` None), those behind it may pass.

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
        self.waiting: list[Sequence] = []  # in order of admission
        self._arrivals = itertools.count()
        self.running: list[Sequence] = []  # in order of admission: the last is the youngest
        self._clock = clock
        self.max_batch_tokens = max_batch_tokens
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._prefix_caching = prefix_caching
        self._scorable = SCORED_PER_STEP  # what is left of it in the step being planned
        self.cached_tokens = 0  # of prompts, cumulative: found or loaded instead of computed

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
        sequence.arrival = next(self._arrivals)
        insort(self.waiting, sequence, key=_place)

    def finish(self, sequence: Sequence) -> None:
        """The sequence ended or is aborted, in whatever state: give its blocks back."""
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
        self._release(sequence)

    def schedule(self) -> StepPlan:
        """The next step's work; empty only when nothing waits or runs, or everything waits for tiers."""
        budget = self.max_batch_tokens
        self._scorable = SCORED_PER_STEP
        work: list[Work] = []
        admitted: list[Admission] = []
        preempted: list[Sequence] = []
        for sequence in [s for s in self.running if s.state is SequenceState.DECODING]:
            if sequence.state is not SequenceState.DECODING:
                continue  # preempted by an older one in this very loop
            if budget < 1:
                break
            drafts = min(sequence.drafts, budget - 1)
            if self._missing(sequence, sequence.length + drafts) > 0:  # else, as in most steps, there is room
                if self._missing(sequence, sequence.length + drafts) > self.pool.available:
                    drafts = 0  # a guess is never worth another's blocks
                if not self._make_room(sequence, sequence.length + drafts, preempted):
                    continue
            work.append(Work(sequence, sequence.computed, 1 + drafts, drafts, prefill=False, samples=True))
            budget -= 1 + drafts
        for sequence in [s for s in self.running if s.state is SequenceState.PREFILLING]:
            if sequence.state is SequenceState.PREFILLING and budget > 0:
                budget -= self._prefill(sequence, budget, work, preempted)
        place = 0  # of the queue: those before it wait for tiers
        while place < len(self.waiting) and budget > 0 and len(self.running) < self._max_running and not preempted:
            sequence = self.waiting[place]
            if sequence.to_load is None:
                place += 1
                continue
            admission = self._admit(sequence, place)
            if admission is None:
                if sequence.to_load and self._comes(sequence):
                    place += 1
                    continue
                break
            admitted.append(admission)
            if sequence.state is SequenceState.PREFILLING:
                budget -= self._prefill(sequence, budget, work, preempted)
        # a preemption may have hit a sequence that this plan had already given work
        kept = tuple(item for item in work if item.sequence.state is not SequenceState.WAITING)
        return StepPlan(kept, tuple(admitted), tuple(preempted))

    def commit(self, work: Work, tokens: int) -> Rows[Published]:
        """The step computed `work` and `tokens` new tokens were committed (0 for a chunk that chose none).

        The engine has extended `sequence.keys`; blocks whose tokens are all committed and computed become findable. Returns
        those that nobody could find before.
        """
        sequence = work.sequence
        sequence.drafts = 0
        if work.prefill:
            sequence.computed = work.start + work.count
            sequence.scored += work.scored
            if work.samples:
                sequence.state = SequenceState.DECODING
        else:
            sequence.computed = work.start + tokens
        sequence.length += tokens
        if self._prefix_caching:
            full = min(sequence.computed // self.block_tokens, len(sequence.keys))
            if full > sequence.published:
                return self._publish(sequence, full)
        return ()

    def reusable_blocks(self, sequence: Sequence) -> int:
        """How many of its leading blocks may be found instead of computed."""
        # the last token is always computed: its logits choose the next one
        reusable = sequence.length - 1
        if sequence.scored < sequence.to_score:
            reusable = sequence.scored  # logits cannot be found in the cache
        return min(reusable // self.block_tokens, len(sequence.keys)) if self._prefix_caching else 0

    def loaded(self, sequence: Sequence, blocks: int, dated: Mapping[bytes, int]) -> None:
        """The KV of a LOADING sequence's first `blocks` blocks is there and becomes findable; the rest is to be computed. `dated`
        says by key when what came was first computed."""
        self._publish(sequence, blocks, dated)
        self._begin_behind(sequence, blocks)
        if not sequence.preemptions:
            self._cached(sequence)
        sequence.to_load = 0
        sequence.arriving = False

    def arriving(self, sequence: Sequence, blocks: int) -> None:
        """The KV of a LOADING sequence's first `blocks` blocks will be there when the layers that read it are computed: the rest
        is computed in the next steps. `loaded` or `not_arrived` must follow, before what such a step gave is committed."""
        self._begin_behind(sequence, blocks)
        sequence.arriving = True

    def not_arrived(self, sequence: Sequence) -> None:
        """It was not: what was computed behind it is void, and the sequence is LOADING again."""
        sequence.computed = sequence.published * self.block_tokens
        sequence.arriving = False
        sequence.state = SequenceState.LOADING

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
            assert sequence.state is SequenceState.WAITING, f"a sequence in the queue is {sequence.state}"
        assert self.pool.references() == held, "references differ from what sequences hold"

    def _cached(self, sequence: Sequence) -> None:
        """What it has now is what it need not compute: found on the device, or loaded."""
        self.cached_tokens += sequence.computed - sequence.cached_tokens
        sequence.cached_tokens = sequence.computed

    def _begin_behind(self, sequence: Sequence, blocks: int) -> None:
        sequence.computed = blocks * self.block_tokens
        sequence.state = SequenceState.PREFILLING

    def _comes(self, sequence: Sequence) -> bool:
        """Whether what it misses first is being loaded for another."""
        found = len(self.pool.lookup(sequence.keys))
        return any(
            (other.arriving or other.state is SequenceState.LOADING)
            and other.keys[found : found + 1] == sequence.keys[found : found + 1]
            for other in self.running
        )

    def forget(self, condemned: Callable[[bytes], bool]) -> int:
        """Make what was published under condemned salts unfindable, and whatever the requests that are here still compute or load
        under them; returns how many blocks."""
        for sequence in (*self.waiting, *self.running):
            sequence.unshared = sequence.unshared or condemned(sequence.salt)
        return self.pool.forget(condemned)

    def unshared(self) -> list[str]:
        """The requests that are here and of which nobody may find anything."""
        return [sequence.id for sequence in (*self.waiting, *self.running) if sequence.unshared]

    def _publish(self, sequence: Sequence, full: int, dated: Mapping[bytes, int] | None = None) -> Rows[Published]:
        """Make its blocks findable up to the one numbered `full`; those that nobody could find before."""
        fresh = []
        for index in range(sequence.published, 0 if sequence.unshared else full):
            block, key = sequence.blocks[index], sequence.keys[index]
            if self.pool.publish(block, key, sequence.salt, None if dated is None else dated.get(key)):
                fresh.append(Published(block, key))
        sequence.published = max(sequence.published, full)
        return fresh

    def _admit(self, sequence: Sequence, place: int) -> Admission | None:
        start_s = self._clock.now()
        reusable = self.reusable_blocks(sequence)
        found = self.pool.lookup(sequence.keys[: 0 if sequence.past_device else reusable])
        end_s = self._clock.now()
        missing = self._blocks_for(sequence.length) - len(found)
        if missing > self.pool.available - self.pool.cached_among(found):
            return None
        to_load = min(sequence.to_load or 0, reusable) if sequence.load_from <= len(found) else 0
        if to_load > len(found) and self._comes(sequence):
            return None
        self.pool.acquire(found)
        sequence.blocks = tuple(found)
        sequence.published = len(found)
        sequence.computed = len(found) * self.block_tokens
        first = not sequence.preemptions
        if first:  # what a preempted sequence finds again is its own work, not a hit
            self._cached(sequence)
        if to_load > len(found):
            sequence.blocks = (*found, *self.pool.allocate(to_load - len(found)))
            sequence.state = SequenceState.LOADING
        else:
            sequence.state = SequenceState.PREFILLING
            to_load = 0
        sequence.to_load = to_load
        self.waiting.pop(place)
        self.running.append(sequence)
        return Admission(sequence, first, start_s, end_s)

    def _prefill(self, sequence: Sequence, budget: int, work: list[Work], preempted: list[Sequence]) -> int:
        start = sequence.computed
        count = min(sequence.piece - start % sequence.piece if sequence.piece else budget, sequence.length - start)
        scored = 0
        if sequence.scored < sequence.to_score:
            # rows before `scored` are computed again after a preemption, and need no logits this time
            count = min(count, sequence.scored - start + self._scorable)
            if count <= 0:
                return 0
            scored = max(0, min(start + count, sequence.to_score) - sequence.scored)
        if not self._make_room(sequence, start + count, preempted):
            return 0
        self._scorable -= scored
        # nothing is chosen behind a prompt that is only read
        samples = start + count == sequence.length < sequence.max_length
        work.append(
            Work(
                sequence,
                start,
                count,
                0,
                prefill=True,
                samples=samples,
                scored=scored,
                scored_from=sequence.scored,
            )
        )
        return count

    def _make_room(self, sequence: Sequence, tokens: int, preempted: list[Sequence]) -> bool:
        """Give `sequence` blocks for `tokens` tokens, preempting the last in rank; False when it was preempted itself."""
        missing = self._missing(sequence, tokens)
        while missing > self.pool.available:
            victim = self._last_in_rank()
            self._preempt(victim)
            preempted.append(victim)
            if victim is sequence:
                return False
        if missing > 0:
            sequence.blocks = (*sequence.blocks, *self.pool.allocate(missing))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.state = SequenceState.WAITING
        sequence.preemptions += 1
        insort(self.waiting, sequence, key=_place)

    def _last_in_rank(self) -> Sequence:
        """The youngest of those with the highest priority value."""
        last = self.running[-1]
        for sequence in reversed(self.running):
            if sequence.priority > last.priority:
                last = sequence
        return last

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = ()
        sequence.computed = sequence.published = sequence.drafts = 0
        sequence.to_load = 0
        sequence.arriving = False

    def _missing(self, sequence: Sequence, tokens: int) -> int:
        return self._blocks_for(tokens) - len(sequence.blocks)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)


def _place(sequence: Sequence) -> tuple[int, int]:
    return sequence.priority, sequence.arrival
