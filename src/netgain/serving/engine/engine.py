"""The step loop: draft, schedule, execute, verify, commit; it keeps the tokens and writes down where the time went."""

import math
from collections import ChainMap
from collections.abc import Callable

import msgspec

from netgain.cost.step_cost import StepCost
from netgain.errors import ExecutorFailed, Overloaded, RequestRejected
from netgain.ledger.clock import Clock
from netgain.ledger.collector import Collector
from netgain.ledger.stage import Stage
from netgain.serving.blocks.keys import Namespace
from netgain.serving.engine.accounts import Accounts, Committed, StepStamps
from netgain.serving.engine.admission import check_request
from netgain.serving.engine.answer import committed_logprobs
from netgain.serving.engine.batch import Batch, SegmentResult, StepResult
from netgain.serving.engine.deadlines import Deadlines
from netgain.serving.engine.drafting import NO_DRAFT, AsManyAsAllowed, Drafting
from netgain.serving.engine.finish import drafts_kept, truncate
from netgain.serving.engine.generation import Generation
from netgain.serving.engine.grammar import Grammars, Masks
from netgain.serving.engine.model_drafts import ModelDrafts
from netgain.serving.engine.noise import PositionNoise
from netgain.serving.engine.preparation import generation_of, must_prepare, prepare
from netgain.serving.engine.protocols import ChunkSource, Draft, DraftControl, Executor, Proposer, Target, Verifier
from netgain.serving.engine.request import EngineStats, Output, Request
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.segments import masks_of, segment_of
from netgain.serving.engine.sequence import SequenceState
from netgain.serving.engine.step_curve import StepCurve, step_limits
from netgain.serving.engine.step_plan import Work
from netgain.serving.engine.step_probe import DEFAULT_BATCH
from netgain.serving.engine.tiering import Tiering

NOTHING = Committed()


class Engine:
    """Generates for many requests at once. Not thread-safe: submit, abort and step are called from one task.

    Owns executor, scheduler and proposer from construction until `close`. A failing step ends the requests that were in
    it (finish_reason "error") and nothing else.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        scheduler: Scheduler,
        namespace: Namespace,
        clock: Clock,
        collector: Collector,
        vocab_size: int,
        eos_ids: frozenset[int],
        proposer: Proposer | ModelDrafts | None = None,
        verifier: Verifier | None = None,
        max_drafts: int = 0,
        control: DraftControl | None = None,
        grammars: Grammars | None = None,
        step_curve: StepCurve | None = None,
        tiering: Tiering | None = None,
        chunks: ChunkSource | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self._namespace = namespace
        self._clock = clock
        self._collector = collector
        self._accounts = Accounts(collector, scheduler)
        self.step_curve = step_curve or StepCurve(
            executor, scheduler.pool, clock, step_limits(scheduler), msgspec.structs.asdict(namespace)
        )
        self._accounts.step_cost = self.step_curve.cost
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._drafting = None
        if proposer and verifier and max_drafts:
            self._drafting = Drafting(proposer, verifier, max_drafts, control or AsManyAsAllowed())
        self._tiering = tiering
        self.chunks = chunks
        self._grammars = grammars
        self._constrained = 0  # how many of the generations follow a grammar
        self._generations: dict[str, Generation] = {}
        self._in_flight: frozenset[str] = frozenset()
        self._aborted: set[str] = set()
        self._outbox: list[Output] = []
        self._deadlines = Deadlines()

    @property
    def has_work(self) -> bool:
        return bool(self._outbox or self._generations or (self._tiering is not None and self._tiering.has_work))

    def must_prepare(self, request: Request) -> bool:
        """See preparation.py."""
        return must_prepare(request, self._grammars, self.chunks)

    def lacks_key(self, request: Request) -> bool:
        """Whether `prepare` has to make a key for its tenant, which a file is written for."""
        return self._tiering is not None and self._tiering.envelope.lacks(request.salt)

    async def prepare(self, request: Request) -> None:
        """See preparation.py. Raises RequestRejected."""
        await prepare(request, self._grammars, self.chunks, self._tiering)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises RequestRejected (it can never run) or Overloaded (not now)."""
        if request.id in self._generations:
            raise RequestRejected(f"a request with id {request.id!r} is running already", "id")
        check_request(request, self._vocab_size, blends=self.chunks is not None, tiers=self._tiering is not None)
        start_s = self._clock.now()
        tiering, namespace = self._tiering, self._namespace
        root = namespace.root(request.salt) if tiering is None else tiering.envelope.root(namespace, request.salt)
        generation = generation_of(request, root, self.scheduler.block_tokens, self._eos_ids, self._grammars)
        self.scheduler.add(generation.sequence)
        self._generations[request.id] = generation
        self._constrained += generation.constraint is not None
        if request.deadline_s is not None:
            self._deadlines.add(request.deadline_s, request.id)
        generation.timeline.add(Stage.CACHE_LOOKUP, start_s, self._clock.now())
        if tiering is not None:
            tiering.asked(generation)

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state; its Output ("abort") comes with the next step. False when it is not known."""
        generation = self._generations.get(request_id)
        if generation is None:
            return False
        if request_id in self._in_flight:
            self._aborted.add(request_id)  # its blocks are being written; the commit ends it
        else:
            self._end(generation, "abort")
        return True

    async def step(self) -> list[Output]:
        """One turn of the loop: what was committed and what ended since the last turn; [] when there is nothing to do. Where
        every request waits for KV tiers, the turn lasts until something happens, or `interrupt`."""
        started_s = self._clock.now()
        if self._deadlines.next_s <= started_s:
            self._expire(started_s)
        if self._tiering is not None:
            await self._tiering.answers()
            self._tiering.turn(self._clock.now())
            started_s = self._clock.now()
        drafting = self._drafting
        drafts = drafting.before_schedule(self.scheduler.running, self._generations) if drafting else {}
        drafted_s = self._clock.now() if drafts else started_s
        plan = self.scheduler.schedule()
        scheduled_s = ready_s = self._clock.now()
        if self._tiering is not None and (plan.admitted or plan.preempted):
            self._tiering.scheduled(plan, self._generations, scheduled_s)
            scheduled_s = ready_s = self._clock.now()
        if drafting is not None and drafting.after_schedule:
            self._in_flight = plan.named
            plan, drafts = await drafting.by_model(plan, self._generations)
            ready_s = self._clock.now() if drafts else scheduled_s
        result = StepResult(())
        arriving = () if self._tiering is None else self._tiering.arriving(plan)
        if plan.work:
            masks: dict[str, Masks] = {}
            if self._constrained and self._grammars is not None:
                masks = masks_of(plan.work, drafts, self._generations, self._grammars)
            needs_laws = drafting is not None and drafting.verifier.needs_laws
            segments = tuple(
                segment_of(
                    work,
                    self._generations[work.sequence.id],
                    drafts[work.sequence.id].tokens[: work.drafts] if work.drafts else (),
                    masks.get(work.sequence.id) if masks else None,
                    needs_laws,
                )
                for work in plan.work
            )
            self._in_flight = plan.named
            result = await self._execute(Batch(segments, arriving))
        executed_s = self._clock.now()
        void = frozenset() if self._tiering is None else self._tiering.computed(plan, arriving, executed_s - ready_s)
        committed = [
            self._commit(work, drafts.get(work.sequence.id, NO_DRAFT), part, work.sequence.id in void)
            for work, part in zip(plan.work, result.segments, strict=True)
        ]
        finished_s = self._clock.now()
        stamps = StepStamps(started_s, drafted_s, scheduled_s, ready_s, executed_s, finished_s, result.forward_s)
        self._accounts.write_down(plan, committed, drafts.keys(), stamps, self._generations)
        if drafting is not None:
            counts = [len(part.tokens) for part in committed]
            drafting.turned(plan, counts, finished_s - started_s, drafted_s - started_s + ready_s - scheduled_s)
        for work, part in zip(plan.work, committed, strict=True):
            self._report(self._generations[work.sequence.id], part)
        for request_id in tuple(self._aborted):  # what the plan named and gave no work
            self._end(self._generations[request_id], "abort")
        if self._tiering is not None and not plan.work and not self._outbox and self._tiering.waits:
            await self._tiering.wait(self._deadlines.next_s)
            self._accounts.nothing_runs()
        if not self._generations:
            self._accounts.nothing_runs()
        outputs, self._outbox = self._outbox, []
        return outputs

    def interrupt(self) -> None:
        """End a turn that only waits: there is a request to submit or to abort."""
        if self._tiering is not None:
            self._tiering.interrupt()

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, when there is work that no request brought."""
        if self._tiering is not None:
            self._tiering.wake_by(wake)

    async def measure_step_cost(self, budget_s: float, largest_batch: int = DEFAULT_BATCH) -> StepCost:
        """Measure what steps cost here (see step_probe) and split own cost from stall by it from now on.

        Raises Overloaded while requests run: their steps would be stretched, and so would the figures.
        """
        if self._generations:
            raise Overloaded("requests are running: the step cost is measured when the engine is idle, retry then")
        if self._tiering is not None:
            self._tiering.storing.drain()  # what is still to be stored must be read before blocks are evicted
        self._accounts.step_cost = await self.step_curve.measure(budget_s, largest_batch)
        return self._accounts.step_cost

    def upkeep_in_s(self, idle_s: float) -> float | None:
        """In how many seconds `keep_up` should be called if the engine, idle for `idle_s`, stays so; None: never."""
        return self.step_curve.due_in_s(idle_s, self._collector.steps)

    async def keep_up(self) -> None:
        """Run one step of what an idle engine does for itself."""
        if not self._generations:
            await self.step_curve.advance()
            self._accounts.step_cost = self.step_curve.cost

    def stats(self) -> EngineStats:
        """Gauges of this moment and counters since the start."""
        return EngineStats(
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            free_blocks=self.scheduler.pool.available,
            total_blocks=self.scheduler.pool.blocks,
            **(self._drafting.counts if self._drafting else {}),
            **self._accounts.counters,
        )

    def check(self) -> None:
        """Raise AssertionError unless engine, scheduler and pool agree (run in tests after every step and when idle)."""
        self.scheduler.check()
        queued = {s.id for s in (*self.scheduler.waiting, *self.scheduler.running)}
        assert queued == self._generations.keys(), "scheduler and engine know different requests"
        for generation in self._generations.values():
            assert generation.sequence.length == len(generation.tokens), "lengths and tokens disagree"

    def close(self) -> None:
        """End everything; the executor's memory is given back."""
        for part in (self._grammars, self._drafting, self._tiering, self.chunks):
            if part is not None:
                part.close()
        self.executor.close()

    def tier_counters(self) -> dict[str, float]:
        """Of KV tiers and chunks, cumulative; `name/tier` where they belong to one. From any thread."""
        parts = [part.counters() for part in (self._tiering, self.chunks) if part is not None]
        return dict(ChainMap(*parts))

    def _expire(self, now_s: float) -> None:
        for request_id in self._deadlines.due(now_s):
            generation = self._generations.get(request_id)
            # the id may belong to a later request by now
            if generation is not None and (generation.request.deadline_s or math.inf) <= now_s:
                self._end(generation, "deadline")

    async def _execute(self, batch: Batch) -> StepResult:
        try:
            return await self.executor.execute(batch)
        except ExecutorFailed as failure:
            return StepResult(tuple(SegmentResult((), error=str(failure)) for _ in batch.segments))
        finally:
            self._in_flight = frozenset()

    def _commit(self, work: Work, draft: Draft, result: SegmentResult, void: bool) -> Committed:
        """Verify, cut at the end of the answer, publish; what is void is as if it had not been computed."""
        generation = self._generations[work.sequence.id]
        if result.error is not None or void:
            return Committed(error=result.error)
        tokens: tuple[int, ...] = ()
        accepted = 0
        if work.samples:
            tokens = result.choices[:1]
            if work.drafts:
                assert self._drafting is not None
                offered = draft.first(work.drafts)
                noise = PositionNoise(generation.request.sampling.seed, generation.request.choice)
                position = work.start + 1
                tokens = self._drafting.verifier.verify(offered, Target(result.choices, result.laws), noise, position)
            remaining = work.sequence.max_length - work.sequence.length
            tokens, generation.finish_reason = truncate(tokens, remaining, generation.stop_ids)
            if work.drafts and self._drafting is not None:
                accepted = drafts_kept(draft.tokens[: work.drafts], tokens)
                self._drafting.verified(generation, work.drafts, accepted, len(tokens))
            refusal = generation.extend(tokens)
            if refusal is not None:
                return Committed(error=refusal)
        if result.blending is not None:
            generation.blended(result.blending, work.start)
        if work.scored and result.prompt_logprobs is not None:
            generation.scored(result.prompt_logprobs)
        published = self.scheduler.commit(work, len(tokens))
        if published and self._tiering is not None:
            self._tiering.published(generation, published)
        if work.sequence.computed == work.sequence.max_length:
            generation.finish_reason = "length"  # max_tokens 0: the prompt is read
        if generation.request.sampling.logprobs is None:
            return Committed(tokens, accepted)
        return Committed(tokens, accepted, committed_logprobs(generation.request.sampling.logprobs, result, tokens))

    def _report(self, generation: Generation, part: Committed) -> None:
        if part.error is not None:
            self._end(generation, "error", part)
        elif generation.finish_reason is not None:
            self._end(generation, generation.finish_reason, part)
        elif generation.request.id in self._aborted:
            self._end(generation, "abort", part)
        elif part.tokens:
            self._outbox.append(generation.output(part.tokens, part.logprobs))

    def _end(self, generation: Generation, reason: str, part: Committed = NOTHING) -> None:
        """Give everything back and queue the last output, with the trace."""
        request, sequence = generation.request, generation.sequence
        if sequence.state is SequenceState.WAITING:
            generation.wait_until(self._clock.now())
        if self._tiering is not None:
            self._tiering.ended(generation)
        trace = generation.trace()
        self.scheduler.finish(sequence)
        if self._drafting is not None:
            self._drafting.end(generation)
        self._aborted.discard(request.id)
        del self._generations[request.id]
        self._constrained -= generation.constraint is not None
        self._accounts.counters["requests_finished"] += 1
        self._outbox.append(
            Output(
                request_id=request.id,
                tokens=part.tokens,
                finish_reason=reason,
                logprobs=part.logprobs,
                prompt_logprobs=generation.take_prompt_logprobs(),
                trace=trace,
                error=part.error,
            )
        )
