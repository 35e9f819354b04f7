"""Prefixes from tiers beyond the device: looked for when a request enters the queue, fetched while it waits, loaded while
others compute; and computed after all where that is predicted to be sooner, or what was to come does not."""

import asyncio
import logging
import statistics
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile

import msgspec

from netgain.cost.link import LinkEstimate, LinkFit
from netgain.ledger.clock import Clock
from netgain.ledger.collector import Collector
from netgain.ledger.records import Handoff, HandoffKind, KVReuse
from netgain.ledger.stage import Stage
from netgain.serving.engine.generation import Generation
from netgain.serving.engine.prefill_cost import PrefillCost
from netgain.serving.engine.protocols import BlockMemory
from netgain.serving.engine.scheduler import Published, Scheduler, StepPlan
from netgain.serving.engine.sequence import Sequence as Queued
from netgain.serving.engine.sequence import SequenceState
from netgain.serving.engine.storing import Storing
from netgain.serving.tiers.choice import Choice, Why, choose
from netgain.serving.tiers.kv_store import KVStore, Loaded, Located
from netgain.serving.tiers.runner import Runner

PLACED_AT_ONCE = 64  # blocks copied into the pool between two steps, so that running requests are not held up
PROBE_EVERY_S = 10.0  # a link that nobody uses is measured again so often, when there is something to read
LEAST_WAIT_S = 0.02  # no load is given up before

_log = logging.getLogger(__name__)
Event = Callable[[float], None]


class TieringOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`policy`: "measured" loads what is predicted to be sooner than computing it, "always" whatever is found, "never" nothing
    (KV is stored all the same). `lookup_s` and `load_s` bound the waits of one request for an answer and for its KV; the
    measured policy sets shorter ones. `ahead_bytes` may be fetched for requests that still wait in the queue, `room_bytes`
    copied and not yet queued at the tiers. `group` blocks come in one exchange. `close_s`: so long the end waits for what
    is still to be stored."""

    policy: str = "measured"
    lookup_s: float = 0.5
    load_s: float = 10.0
    ahead_bytes: int = 256 << 20
    room_bytes: int = 128 << 20
    group: int = 16
    close_s: float = 1.0


class _Load:
    """What one request gets from tiers. Blocks are numbered from `base`, how many the device had; `next` is the first that is
    not in the pool yet, `end` where loading ends. `since_s`: the request waits for it."""

    __slots__ = (
        "arrived",
        "base",
        "begun_s",
        "busy_s",
        "bytes",
        "cancelled",
        "end",
        "expected_s",
        "first",
        "generation",
        "held_bytes",
        "keys",
        "next",
        "over",
        "places",
        "since_s",
        "until_s",
    )

    def __init__(self, generation: Generation, base: int, keys: Sequence[bytes], now_s: float, until_s: float) -> None:
        self.generation = generation
        self.base = base
        self.keys = keys
        self.begun_s = now_s
        self.until_s = until_s
        self.places: tuple[int, ...] = ()
        self.arrived: list[tuple[memoryview, ...] | None] = []
        self.first = self.next = self.end = 0
        self.since_s: float | None = None
        self.expected_s: float | None = None  # of loading, by the newest prediction
        self.busy_s = 0.0
        self.bytes = self.held_bytes = 0
        self.over = False  # nothing more will come
        self.cancelled = False  # nothing more is wanted; read by the job that fetches

    @property
    def sequence(self) -> Queued:
        return self.generation.sequence

    @property
    def kv(self) -> KVReuse:
        assert self.generation.kv is not None
        return self.generation.kv

    @property
    def located(self) -> bool:
        return bool(self.places)

    def ready(self) -> int:
        """How many blocks have come that can be placed."""
        return sum(1 for _ in takewhile(lambda block: block is not None, self.arrived[self.next : self.end]))


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
        self.cost = cost
        self._options = options or TieringOptions()
        self._store, self._memory, self._scheduler, self._runner = store, memory, scheduler, runner
        self._clock, self._collector, self._rewritten = clock, collector, rewritten
        self._block_tokens = scheduler.block_tokens
        self.storing = Storing(
            store,
            memory,
            scheduler.pool,
            runner,
            clock,
            collector,
            block_tokens=self._block_tokens,
            room=self._options.room_bytes,
        )
        self._loads: dict[str, _Load] = {}
        self._there: dict[str, Mapping[bytes, int | None]] = {}  # what tiers have, of running requests
        self._admitted_s: dict[str, float] = {}
        self._ahead_bytes = 0
        self._placing = LinkEstimate()
        self._lookups_s: deque[float] = deque(maxlen=16)
        self._asked_s = float("-inf")
        self._sampled_s: dict[int, float] = {}
        self._learning: set[int] = set()  # tiers that are read for the first time
        self._inbox: deque[Event] = deque()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self.counts: Counter[str] = Counter()

    def asked(self, generation: Generation) -> None:
        """A request enters the queue, for the first time or after a preemption: look for what the device lacks."""
        sequence, now_s = generation.sequence, self._clock.now()
        keys = sequence.keys[: self._scheduler.reusable_blocks(sequence)]
        base = len(self._scheduler.pool.lookup(keys))
        if self._options.policy == "never" or base == len(keys):
            return
        wait_s = self._options.lookup_s
        full_s = self._compute_s(sequence, base)
        if self._options.policy == "measured" and full_s is not None:
            if (
                self._lookups_s
                and full_s < statistics.median(self._lookups_s)
                and now_s - self._asked_s < PROBE_EVERY_S
            ):
                self.counts["kv_lookups_skipped"] += 1
                return
            wait_s = min(wait_s, max(LEAST_WAIT_S, full_s / 2))
        self._asked_s = now_s
        self.counts["kv_lookups"] += 1
        self.counts["kv_lookup_tokens"] += (len(keys) - base) * self._block_tokens
        generation.kv = generation.kv or KVReuse()
        load = _Load(generation, base, tuple(keys[base:]), now_s, now_s + wait_s)
        sequence.to_load = None
        self._loads[sequence.id] = load
        self._runner.start(self._locate(load))

    def turn(self, now_s: float) -> None:
        """At the start of a step: what was published goes out, what has come is taken in, what is late is given up."""
        if self.storing.has_work:
            self.storing.flush()
        while self._inbox:
            self._inbox.popleft()(now_s)
        for load in tuple(self._loads.values()):
            if load.since_s is not None:
                load.over = load.over or now_s >= load.until_s
                self._place(load, now_s)
            elif not load.located and now_s >= load.until_s:
                load.kv.why = "no_answer"
                self.counts["kv_lookups_late"] += 1
                self._compute(load, now_s)

    def scheduled(self, plan: StepPlan, generations: Mapping[str, Generation], now_s: float) -> None:
        """Begin the loads that the plan has given blocks; look again for what preempted requests lost."""
        for sequence in plan.preempted:
            if (load := self._loads.get(sequence.id)) is not None:
                self._drop(load, now_s)
            self.asked(generations[sequence.id])
        for admission in plan.admitted:
            sequence = admission.sequence
            if admission.first and generations[sequence.id].kv is not None:
                self._admitted_s[sequence.id] = now_s
            load = self._loads.get(sequence.id)
            if load is None:
                continue
            if sequence.state is SequenceState.LOADING:
                self._begin(load, now_s)
            else:  # the device has it by now, or lost what came before it
                self._drop(load, now_s)

    def published(self, generation: Generation, blocks: Sequence[Published]) -> None:
        """Blocks of a running request became findable."""
        there = self._there.get(generation.request.id, {})
        self.storing.published(generation.chain.root, blocks, there)

    def ended(self, generation: Generation) -> None:
        """The request ended, in whatever way; called before the scheduler finishes it."""
        name = generation.request.id
        if (load := self._loads.get(name)) is not None:
            self._drop(load, self._clock.now())
        self._there.pop(name, None)
        since_s = self._admitted_s.pop(name, None)
        if since_s is not None and generation.kv is not None and generation.first_token_s is not None:
            generation.kv.actual_s = generation.first_token_s - since_s

    @property
    def waits(self) -> bool:
        """Whether some request waits for tiers, and nothing has come that could be taken in."""
        return (
            bool(self._loads)
            and not self._inbox
            and any(
                not load.located if load.since_s is None else not load.over and not load.ready()
                for load in self._loads.values()
            )
        )

    async def wait(self, until_s: float) -> None:
        """Return when something has come, at `until_s`, or when the first bound of a request is reached."""
        dues = (load.until_s for load in self._loads.values() if load.since_s is not None or not load.located)
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiter = (loop, waiter)
        try:
            if self._inbox:
                return
            alarm = asyncio.ensure_future(self._clock.sleep(min(until_s, *dues, until_s) - self._clock.now()))
            try:
                await asyncio.wait({waiter, alarm}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                alarm.cancel()
        finally:
            self._waiter = None

    def interrupt(self) -> None:
        """End `wait`, if it waits. From any thread."""
        waiting = self._waiter
        if waiting is not None:
            loop, waiter = waiting
            loop.call_soon_threadsafe(_wake, waiter)

    def counters(self) -> dict[str, float]:
        """Cumulative, flat; `name/tier` for those of one tier. From any thread."""
        stats = self._runner.ask(self._store.stats, 0.2)
        named: dict[str, float] = {**self.counts, "kv_stores_dropped": self.storing.dropped}
        if stats is None:
            return named
        for tier, dropped, promoted, queued in zip(
            stats.tiers, stats.dropped, stats.promoted, stats.queued_bytes, strict=True
        ):
            values: dict[str, float | None] = {
                "tier_hits": tier.hits,
                "tier_misses": tier.misses,
                "tier_loaded_bytes": tier.loaded.bytes,
                "tier_loaded_s": tier.loaded.seconds,
                "tier_stored_bytes": tier.stored.bytes,
                "tier_stored_s": tier.stored.seconds,
                "tier_refused": sum(tier.refused.values()),
                "tier_unread": sum(tier.unread.values()),
                "tier_unwritten": sum(tier.unwritten.values()) + dropped,
                "tier_evictions": tier.usage.evictions,
                "tier_promoted": promoted,
                "tier_breaker_opened": tier.breaker_opened,
                "tier_bytes": tier.usage.bytes,
                "tier_queued_bytes": queued,
                "tier_broken": float(tier.breaker != "closed"),
            }
            if tier.loaded.link is not None:
                values["tier_load_latency_s"] = tier.loaded.link.latency_s
                values["tier_load_bytes_per_s"] = tier.loaded.link.bytes_per_s
                values["tier_load_error"] = tier.loaded.link.error
            named.update({f"{name}/{tier.name}": value for name, value in values.items() if value is not None})
        return named

    def close(self) -> None:
        """Store what is queued, within a bound, and close the tiers. May be called twice."""
        if self.storing.has_work:
            self.storing.flush()
        for load in self._loads.values():
            load.cancelled = True
        self._runner.close(self._end(), self._options.close_s + 1.0)

    async def _end(self) -> None:
        try:
            await asyncio.wait_for(self._store.settle(), self._options.close_s)
        except TimeoutError:
            _log.warning("KV that was still to be stored is lost: the tiers did not take it in time")
        await self._store.close()

    async def _locate(self, load: _Load) -> None:
        found: Located | None = None
        try:
            found = await self._store.locate(load.keys)
        except Exception:
            _log.exception("a lookup in the KV tiers failed")
        self._post(partial(self._located, load, found))

    async def _fetch(self, load: _Load, first: int, learns: bool) -> None:
        while first < load.end and not load.cancelled:
            # what a link costs is learnt from one block: its size against that of the groups tells latency from bandwidth
            count = 1 if learns else min(self._options.group, load.end - first)
            learns = False
            loaded: Loaded | None = None
            try:
                keys = load.keys[first : first + count]
                loaded = await self._store.load(load.generation.chain.root, keys, self._options.load_s)
            except Exception:
                _log.exception("a load from the KV tiers failed")
            self._post(partial(self._arrived, load, first, loaded))
            if loaded is None or None in loaded.blocks:
                return
            first += count

    async def _probe(self, root: bytes, keys: Sequence[bytes]) -> None:
        try:
            await self._store.load(root, keys, self._options.load_s)
        except Exception:
            _log.exception("a probe of a KV tier failed")

    def _post(self, event: Event) -> None:
        self._inbox.append(event)
        self.interrupt()

    def _located(self, load: _Load, found: Located | None, now_s: float) -> None:
        if self._loads.get(load.sequence.id) is not load:
            return
        kv = load.kv
        load.generation.timeline.add(Stage.CACHE_LOOKUP, load.begun_s, now_s)
        kv.lookup_s = (kv.lookup_s or 0.0) + now_s - load.begun_s
        self._lookups_s.append(now_s - load.begun_s)
        places = () if found is None else found.places
        self._there[load.sequence.id] = dict(zip(load.keys, places, strict=False))
        load.places = tuple(place for place in takewhile(lambda place: place is not None, places) if place is not None)
        kv.found_tokens += len(load.places) * self._block_tokens
        self.counts["kv_lookups_hit"] += bool(load.places)
        self.counts["kv_found_tokens"] += len(load.places) * self._block_tokens
        choice = self._choose(load, 0, () if found is None else found.links)
        if choice.why is Why.LEARN and self._learning.intersection(load.places[: choice.blocks]):
            choice = Choice(0, choice.full_s, choice.full_s, Why.LEARNING)
        kv.why, kv.warm_s, kv.full_s = choice.why.value, choice.warm_s, choice.full_s
        self._expect(load, choice, choice.blocks)
        if not choice.blocks:
            self.counts["kv_recompute_chosen"] += choice.why is Why.COMPUTE
            if choice.why is Why.COMPUTE:
                self._remeasure(load, now_s)
            self._compute(load, now_s)
            return
        kv.chosen_tokens += choice.blocks * self._block_tokens
        load.end = choice.blocks
        load.arrived = [None] * choice.blocks
        load.sequence.load_from = load.base
        load.sequence.to_load = load.base + choice.blocks
        if self._ahead_bytes + choice.blocks * self._store.block_bytes <= self._options.ahead_bytes:
            self._start(load, 0)

    def _start(self, load: _Load, first: int) -> None:
        load.held_bytes = (load.end - first) * self._store.block_bytes
        self._ahead_bytes += load.held_bytes
        learns = load.kv.why == Why.LEARN
        if learns:
            self._learning.update(load.places[first : load.end])
        self._runner.start(self._fetch(load, first, learns))

    def _arrived(self, load: _Load, first: int, loaded: Loaded | None, now_s: float) -> None:
        self._learning.difference_update(load.places)
        if self._loads.get(load.sequence.id) is not load:
            count = 0 if loaded is None else sum(block is not None for block in loaded.blocks)
            self.counts["kv_wasted_tokens"] += count * self._block_tokens
            return
        if loaded is None:
            load.over = True
            return
        end = first + len(loaded.blocks)
        load.arrived[first:end] = loaded.blocks
        load.busy_s += loaded.seconds
        load.bytes += loaded.bytes
        load.over = load.over or None in loaded.blocks
        for tier in set(load.places[first:end]):
            self._sampled_s[tier] = now_s
        if end >= load.end or load.over or self._options.policy != "measured":
            return
        # what the links turn out to be may make computing the rest the better choice
        choice = self._choose(load, end, loaded.links)
        if choice.blocks:
            if load.expected_s is None:
                self._expect(load, choice, end + choice.blocks)
                if load.since_s is not None:
                    load.until_s = now_s + self._bound_s(load)
            return
        load.end, load.cancelled = end, True
        self.counts["kv_loads_cut"] += 1
        if load.since_s is None:
            load.sequence.to_load = load.base + end

    def _expect(self, load: _Load, choice: Choice, end: int) -> None:
        """How long the choice says that loading up to `end` takes."""
        rest_s = self._compute_s(load.sequence, load.base + end)
        if choice.warm_s is not None and rest_s is not None:
            load.expected_s = max(0.0, choice.warm_s - rest_s)

    def _begin(self, load: _Load, now_s: float) -> None:
        """The request has its blocks, and waits."""
        load.since_s = now_s
        load.first = load.next = load.sequence.published - load.base
        load.until_s = now_s + self._bound_s(load)
        if not load.held_bytes:
            self._start(load, load.next)
        self._place(load, now_s)

    def _bound_s(self, load: _Load) -> float:
        kv, longest_s = load.kv, self._options.load_s
        if self._options.policy != "measured" or kv.full_s is None:
            return longest_s
        wait_s = kv.full_s / 4 if load.expected_s is None else min(kv.full_s, 3.0 * load.expected_s)
        return min(longest_s, max(LEAST_WAIT_S, wait_s))

    def _place(self, load: _Load, now_s: float) -> None:
        """Copy what has come into the pool; the request goes on once that is all."""
        count = min(load.ready(), PLACED_AT_ONCE)
        if count:
            blocks = load.sequence.blocks[load.base + load.next : load.base + load.next + count]
            parts = [part for part in load.arrived[load.next : load.next + count] if part is not None]
            began_s = self._clock.now()
            self._memory.write_blocks(blocks, tuple(zip(*parts, strict=True)))
            self._placing.add(count * self._store.block_bytes, self._clock.now() - began_s)
            self._rewritten(blocks)
            load.arrived[load.next : load.next + count] = [None] * count
            load.next += count
        if load.next >= load.end or (load.over and not load.ready()):
            self._finish(load, self._clock.now())

    def _finish(self, load: _Load, now_s: float) -> None:
        assert load.since_s is not None
        kv, loaded = load.kv, load.next - load.first
        self._scheduler.loaded(load.sequence, load.base + load.next)
        load.generation.timeline.add(Stage.KV_LOAD, load.since_s, now_s)
        waited_s = now_s - load.since_s
        failed = load.next < load.end
        kv.loaded_tokens += loaded * self._block_tokens
        kv.waited_s += waited_s
        kv.bytes += load.bytes
        kv.failed = kv.failed or failed
        kv.source = "+".join(self._store.tiers[tier] for tier in sorted(set(load.places[load.first : load.end])))
        self.counts["kv_loads"] += 1
        self.counts["kv_loads_failed"] += failed
        self.counts["kv_loaded_tokens"] += loaded * self._block_tokens
        self._hand_over(load, now_s, waited_s, failed)
        self._forget(load)

    def _hand_over(self, load: _Load, now_s: float, waited_s: float, failed: bool) -> None:
        """One record per tier; times are split by blocks."""
        blocks = Counter(load.places[load.first : load.end])
        used = Counter(load.places[load.first : load.next])
        for tier, count in sorted(blocks.items()):
            share = count / blocks.total()
            self._collector.handoff(
                Handoff(
                    kind=HandoffKind.KV_TIER,
                    source=self._store.tiers[tier],
                    target="device",
                    at_s=now_s,
                    bytes=used[tier] * self._store.block_bytes,
                    used_tokens=used[tier] * self._block_tokens,
                    wasted_tokens=0,
                    waited_s=waited_s * share,
                    busy_s=load.busy_s * share,
                    hidden_s=max(0.0, load.busy_s - waited_s) * share,
                    failed=failed and used[tier] < count,
                    request_id=load.sequence.id,
                )
            )

    def _drop(self, load: _Load, now_s: float) -> None:
        """What has come is of no use any more."""
        wasted = (sum(block is not None for block in load.arrived) + load.next - load.first) * self._block_tokens
        load.kv.wasted_tokens += wasted
        self.counts["kv_wasted_tokens"] += wasted
        if load.since_s is not None:
            load.generation.timeline.add(Stage.KV_LOAD, load.since_s, now_s)
            load.kv.waited_s += now_s - load.since_s
        self._forget(load)

    def _compute(self, load: _Load, now_s: float) -> None:
        load.sequence.to_load = 0
        self._forget(load)

    def _forget(self, load: _Load) -> None:
        load.cancelled = True
        load.arrived = []
        self._ahead_bytes -= load.held_bytes
        load.held_bytes = 0
        if load.sequence.to_load is None:
            load.sequence.to_load = 0
        del self._loads[load.sequence.id]

    def _choose(self, load: _Load, first: int, links: Sequence[LinkFit | None]) -> Choice:
        """How many of the blocks from the one numbered `first` on to load."""
        places = load.places[first:]
        start = load.base + first
        if self._options.policy == "always" and places:
            return Choice(len(places), None, self._compute_s(load.sequence, start), Why.ALWAYS)
        placing = self._placing.fit()
        return choose(
            places,
            [_behind(link, placing) for link in links],
            self._store.object_bytes,
            lambda blocks: self._compute_s(load.sequence, start + blocks),
            self._options.group,
        )

    def _compute_s(self, sequence: Queued, blocks: int) -> float | None:
        """To compute what follows the first `blocks` blocks."""
        return self.cost.seconds(blocks * self._block_tokens, sequence.length)

    def _remeasure(self, load: _Load, now_s: float) -> None:
        """A link thought too slow may have become faster: read a little from it, in nobody's way."""
        tier = load.places[0]
        if now_s - self._sampled_s.get(tier, now_s) > PROBE_EVERY_S:
            self.counts["kv_probes"] += 1
            self._sampled_s[tier] = now_s
            self._runner.start(self._probe(load.generation.chain.root, load.keys[: self._options.group]))
        self._sampled_s.setdefault(tier, now_s)


def _behind(link: LinkFit | None, placing: LinkFit | None) -> LinkFit | None:
    """The link with the copy into the pool behind it."""
    if link is None or link.bytes_per_s is None or placing is None or placing.bytes_per_s is None:
        return link
    rate = 1.0 / (1.0 / link.bytes_per_s + 1.0 / placing.bytes_per_s)
    return msgspec.structs.replace(link, latency_s=link.latency_s + placing.latency_s, bytes_per_s=rate)


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
