"""Prefixes from tiers beyond the device: looked for when a request enters the queue, fetched while it waits, loaded while
others compute; and computed after all where that is predicted to be sooner, or what was to come does not."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

from netgain.cost.loading import Choice, Why
from netgain.ledger.clock import Clock
from netgain.ledger.collector import Collector
from netgain.ledger.records import KVReuse
from netgain.ledger.stage import Stage
from netgain.serving.engine import tier_jobs
from netgain.serving.engine.arriving import ArrivingTail, Overlaps
from netgain.serving.engine.generation import Generation
from netgain.serving.engine.known_links import KnownLinks, Lookups
from netgain.serving.engine.kv_load import Load, TieringOptions, outstanding
from netgain.serving.engine.load_account import LoadAccount
from netgain.serving.engine.load_choice import LEAST_WAIT_S, LoadChoice
from netgain.serving.engine.mailbox import Mailbox
from netgain.serving.engine.placing import PLACED_AT_ONCE, Placing
from netgain.serving.engine.prefill_cost import PrefillCost
from netgain.serving.engine.protocols import BlockMemory
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.sequence import SequenceState
from netgain.serving.engine.step_plan import Published, StepPlan
from netgain.serving.engine.storing import Storing
from netgain.serving.engine.tier_report import COUNTED, named_counters
from netgain.serving.engine.whereabouts import Whereabouts
from netgain.serving.tiers.envelope import Envelope
from netgain.serving.tiers.kv_store import KVStore, Loaded, Located
from netgain.serving.tiers.layered import LayersLoaded, group_starts
from netgain.serving.tiers.runner import Runner

PROBE_EVERY_S = 10.0  # a link that nobody uses is measured again so often, when there is something to read
PATIENCE_S = 0.002  # a step is held back for so long, once per request, rather than go without a near answer


class Tiering:
    """Called by the step loop only. Jobs run wherever `runner` has them; their outcomes are taken in `turn`. `rewritten` is told
    of blocks with new content. Owns store and runner until `close`."""

    def __init__(
        self,
        store: KVStore,
        memory: BlockMemory,
        scheduler: Scheduler,
        clock: Clock,
        collector: Collector,
        runner: Runner,
        cost: PrefillCost,
        options: TieringOptions | None = None,
        rewritten: Callable[[Sequence[int]], None] = lambda blocks: None,
    ) -> None:
        self._options = options or TieringOptions()
        starts = group_starts(store.planes[0].layers, 1 if store.only_whole else self._options.layer_groups)
        self._choice = LoadChoice(cost, self._options, scheduler.block_tokens, store.object_bytes, len(starts))
        self._store, self._scheduler, self._runner = store, scheduler, runner
        self._clock, self._collector = clock, collector
        self._placing = Placing(memory, store.block_bytes, self._choice.placing, clock, rewritten)
        self._block_tokens, room, at_once = scheduler.block_tokens, self._options.room_bytes, self._options.copy_bytes
        bounds = {"block_tokens": self._block_tokens, "room": room, "at_once": at_once}
        self.storing = Storing(store, memory, scheduler.pool, runner, clock, collector, **bounds)
        self._loads: dict[str, Load] = {}
        self._there = Whereabouts()
        self._ahead_bytes = 0
        self._lookups, self._links = Lookups(PROBE_EVERY_S), KnownLinks(PROBE_EVERY_S)
        self._mailbox = Mailbox(clock)
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self._account = LoadAccount(store, self._block_tokens, len(starts), clock, self.counts, collector)
        self._overlaps = Overlaps(scheduler, self._choice, self._placing, self._mailbox, clock, starts, self.counts)

    @property
    def envelope(self) -> Envelope:
        """It gives the roots of keys, which requests' KV is stored under, too."""
        return self._store.envelope

    def asked(self, generation: Generation) -> None:
        """A request enters the queue, for the first time or after a preemption: look for what the device lacks."""
        sequence, now_s = generation.sequence, self._clock.now()
        keys = sequence.keys[: self._scheduler.reusable_blocks(sequence)]
        held = [] if sequence.past_device else self._scheduler.pool.lookup(keys)
        base = len(held)
        if base and self.storing.waits_for_use and not sequence.preemptions:
            self.storing.used(generation.chain.root, [Published(*pair) for pair in zip(held, keys, strict=False)])
        if self._options.policy == "never" or base == len(keys):
            return
        wait_s, full_s = self._options.lookup_s, self._choice.compute_s(sequence, base)
        if self._options.policy == "measured" and full_s is not None and not sequence.past_device:
            if not self._lookups.worth(full_s, now_s):
                self.counts["kv_lookups_skipped"] += 1
                return
            wait_s = min(wait_s, max(LEAST_WAIT_S, full_s / 2))
        self._lookups.asked(now_s)
        self.counts["kv_lookups"] += 1
        self.counts["kv_lookup_tokens"] += (len(keys) - base) * self._block_tokens
        generation.kv = generation.kv or KVReuse()
        load = Load(generation, base, tuple(keys[base:]), now_s, now_s + wait_s)
        sequence.to_load = None
        self._loads[sequence.id] = load
        self._runner.start(tier_jobs.locate(self._store, load, wait_s, self._mailbox, self._located))

    async def answers(self) -> None:
        """Wait a moment for tiers that were just asked, if they are known to be quick."""
        if self._lookups.near(PATIENCE_S):
            until_s = self._clock.now() + PATIENCE_S
            while self._clock.now() < until_s and any(not load.located for load in self._loads.values()):
                if self._mailbox:
                    return
                await self.wait(until_s)

    def turn(self, now_s: float) -> None:
        """At the start of a step: what was published goes out, what has come is taken in, what is late is given up."""
        self.storing.flush()
        self._mailbox.take(now_s)
        for load in tuple(self._loads.values()):
            if load.since_s is not None:
                load.over = load.over or now_s >= load.until_s
                self._place(load, now_s)
            elif not load.located and now_s >= load.until_s:
                load.kv.why = "no_answer"
                self.counts["kv_lookups_late"] += 1
                self._compute(load)

    def scheduled(self, plan: StepPlan, generations: Mapping[str, Generation], now_s: float) -> None:
        """Begin the loads that the plan has given blocks; look again for what preempted requests lost."""
        for sequence in plan.preempted:
            if (load := self._loads.get(sequence.id)) is not None:
                self._drop(load, now_s)
            self.asked(generations[sequence.id])
        for admission in plan.admitted:
            sequence = admission.sequence
            if admission.first and generations[sequence.id].kv is not None:
                self._account.admitted(sequence.id, now_s)
            load = self._loads.get(sequence.id)
            if load is None:
                continue
            if sequence.state is SequenceState.LOADING:
                self._begin(load, now_s)
            else:  # the device has it by now, or lost what came before it
                self._drop(load, now_s)

    def arriving(self, plan: StepPlan) -> tuple[ArrivingTail, ...]:
        """What the plan computes behind KV that is still to come."""
        return self._overlaps.of(plan, self._loads) if self._loads else ()

    def computed(self, plan: StepPlan, arriving: Sequence[ArrivingTail], seconds: float) -> frozenset[str]:
        """A step took so long: one piece of a plain prompt alone, which waited for nothing, tells what prefill costs. Returns the
        requests whose KV did not come in time: what the step gave them is void; they wait for the rest, or compute it."""
        if not arriving:
            if len(plan.work) == 1 and plan.work[0].prefill and not plan.work[0].sequence.piece:
                work = plan.work[0]
                self._choice.cost.observed(work.count, work.start, seconds)
            return frozenset()
        now_s = self._clock.now()
        void = [one.request_id for one in arriving if not self._overlaps.passed(one, now_s, seconds)]
        for one in arriving:
            self._place(one.load, now_s)
        return frozenset(void)

    def published(self, generation: Generation, blocks: Sequence[Published]) -> None:
        """Blocks of a running request became findable."""
        self.storing.published(generation.chain.root, blocks, self._there.of(generation.request.id))

    def ended(self, generation: Generation) -> None:
        """The request ended, in whatever way; called before the scheduler finishes it."""
        name = generation.request.id
        if (load := self._loads.get(name)) is not None:
            self._drop(load, self._clock.now())
        self._there.forget(name)
        if for_s := min(generation.request.pin_s, self._options.pin_s):
            self._runner.start(self._store.pin(tuple(generation.chain.keys), for_s, generation.request.tenant))
        self._account.answered(generation)

    @property
    def has_work(self) -> bool:
        """Whether a `turn` would have something to do, also when no request is there."""
        return self.storing.has_work or self.storing.account.has_news or bool(self._mailbox)

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when tiers have told something; from any thread."""
        self._mailbox.wake = self.storing.account.wake = wake

    @property
    def waits(self) -> bool:
        """Whether some request waits for tiers, and nothing has come that could be taken in."""
        return not self._mailbox and any(load.waits for load in self._loads.values())

    async def wait(self, until_s: float) -> None:
        """Return when something has come, at `until_s`, or when the first bound of a request is reached."""
        dues = (load.until_s for load in self._loads.values() if load.since_s is not None or not load.located)
        await self._mailbox.wait(min(until_s, *dues, until_s))

    def interrupt(self) -> None:
        """End `wait`, if it waits. From any thread."""
        self._mailbox.interrupt()

    def counters(self) -> dict[str, float]:
        """Cumulative, flat; `name/tier` for those of one tier, `name/tier/codec` for those of a codec there. From any thread."""
        found = self._runner.ask(lambda: (self._store.stats(), self._store.coder_stats()), 0.2)
        return {**self.counts, **self.storing.counters(), **({} if found is None else named_counters(*found))}

    def close(self) -> None:
        """Store what is queued, within a bound, and close the tiers. May be called twice."""
        self.storing.drain()
        for load in self._loads.values():
            load.cancelled = True
        self._runner.close(tier_jobs.end(self._store, self._options.close_s), self._options.close_s + 1.0)

    def _located(self, load: Load, found: Located | None, now_s: float) -> None:
        if self._loads.get(load.sequence.id) is not load:
            return
        kv = load.kv
        load.generation.timeline.add(Stage.CACHE_LOOKUP, load.begun_s, now_s)
        kv.lookup_s = (kv.lookup_s or 0.0) + now_s - load.begun_s
        if found is not None:
            self._lookups.answered(found.seconds)
        places = () if found is None else found.places
        self._there.located(load, places)
        load.links = () if found is None else found.links
        load.places = tuple(place for place in takewhile(lambda place: place is not None, places) if place is not None)
        kv.found_tokens += len(load.places) * self._block_tokens
        self.counts["kv_lookups_hit"] += bool(load.places)
        self.counts["kv_found_tokens"] += len(load.places) * self._block_tokens
        choice = self._choice.choose(load, 0, load.links, outstanding(self._loads.values(), load))
        if choice.why is Why.LEARN and self._links.learning(load.places[: choice.blocks]):
            choice = Choice(0, choice.full_s, choice.full_s, Why.LEARNING)
        kv.why, kv.warm_s, kv.full_s = choice.why.value, choice.warm_s, choice.full_s
        kv.hidden_s = choice.hidden_s if choice.why is Why.LOAD else None
        self._choice.expect(load, choice, choice.blocks)
        if not choice.blocks:
            self.counts["kv_recompute_chosen"] += choice.why is Why.COMPUTE
            if choice.why is Why.COMPUTE and self._links.remeasures(load.places[0], now_s):
                self.counts["kv_probes"] += 1
                keys = load.keys[: self._options.group]
                self._runner.start(tier_jobs.probe(self._store, load.generation.chain.root, keys, self._options))
            self._compute(load)
            return
        kv.chosen_tokens += choice.blocks * self._block_tokens
        load.wants(choice.blocks)
        if self._ahead_bytes + choice.blocks * self._store.block_bytes <= self._options.ahead_bytes:
            self._start(load, 0)

    def _start(self, load: Load, first: int) -> None:
        load.held_bytes = (load.end - first) * self._store.block_bytes
        self._ahead_bytes += load.held_bytes
        learns = load.kv.why == Why.LEARN
        if learns:
            self._links.learns(load.places[first : load.end])
        else:
            load.tail = self._overlaps.tail(load, first)
        self._runner.start(
            tier_jobs.fetch(
                self._store, load, first, learns, self._options, self._mailbox, self._arrived, self._layers_arrived
            )
        )

    def _arrived(self, load: Load, first: int, loaded: Loaded | None, now_s: float) -> None:
        self._links.learnt(load.places)
        self._there.came(load, first, () if loaded is None else loaded.blocks)
        if self._loads.get(load.sequence.id) is not load:
            self._account.late(load, first, loaded)
            return
        if loaded is None:
            load.over = True
            return
        end = first + len(loaded.blocks)
        load.arrived[first:end] = loaded.blocks
        load.came(first, loaded)
        load.over = load.over or None in loaded.blocks
        self._links.sampled(load.places[first:end], now_s)
        if end >= load.end or load.over or self._options.policy != "measured":
            return
        # what the links turn out to be may make computing the rest the better choice
        choice = self._choice.choose(load, end, loaded.links)
        if choice.blocks:
            if load.expected_s is None:
                self._choice.expect(load, choice, end + choice.blocks)
                if load.since_s is not None:
                    load.until_s = now_s + self._choice.bound_s(load)
            return
        load.end, load.cancelled, load.tail = end, True, None
        self.counts["kv_loads_cut"] += 1
        if load.since_s is None:
            load.sequence.to_load = load.base + end

    def _layers_arrived(self, load: Load, first: int, layers: LayersLoaded | None, now_s: float) -> None:
        tail = load.tail
        self._there.came(load, first, () if layers is None else layers.layers)
        if tail is not None and self._loads.get(load.sequence.id) is load:
            self._links.sampled(load.places[tail.first : load.end], now_s)
            tail.take(load, layers, now_s)
        else:
            self._account.late_layers(load, layers, first)

    def _begin(self, load: Load, now_s: float) -> None:
        """The request has its blocks, and waits."""
        load.since_s = now_s
        load.first = load.next = load.sequence.published - load.base
        load.until_s = now_s + self._choice.bound_s(load)
        if not load.held_bytes:
            self._start(load, load.next)
        load.check_age(self._scheduler.pool.retention)
        self._place(load, now_s)

    def _place(self, load: Load, now_s: float) -> None:
        """Bring what has come into the pool. The request goes on once that is all, or the rest is predicted to come before it is
        read."""
        self._placing.blocks(load)
        tail = load.tail
        if tail is not None and load.next >= tail.first:
            self._placing.layers(load, PLACED_AT_ONCE)
            if tail.complete:
                load.next = load.end
            elif self._overlaps.may_begin(load, tail, now_s):
                self._waited(load, now_s)
                self._overlaps.begin(load, tail)
        if load.next >= load.end or (load.over and not load.ready()):
            self._finish(load, self._clock.now())

    def _waited(self, load: Load, now_s: float) -> None:
        """The request's wait for its KV is over, or goes on unseen."""
        if load.since_s is not None and not (load.tail is not None and load.tail.passing):
            load.generation.timeline.add(Stage.KV_LOAD, load.since_s, now_s)
            load.waited_s += now_s - load.since_s

    def _finish(self, load: Load, now_s: float) -> None:
        self._waited(load, now_s)
        self._scheduler.loaded(load.sequence, load.base + load.next, load.dated)
        self._account.finished(load, now_s)
        self._forget(load)

    def _drop(self, load: Load, now_s: float) -> None:
        """What has come is of no use any more."""
        self._waited(load, now_s)
        self._account.dropped(load, now_s)
        self._forget(load)

    def _compute(self, load: Load) -> None:
        load.sequence.to_load = 0
        self._forget(load)

    def _forget(self, load: Load) -> None:
        load.cancelled = True
        load.arrived = []
        self._ahead_bytes -= load.held_bytes
        load.held_bytes = 0
        if load.sequence.to_load is None:
            load.sequence.to_load = 0
        del self._loads[load.sequence.id]
