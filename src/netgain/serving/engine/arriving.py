"""The end of a prefix on its way into the pool, layer by layer, while what follows it is computed: when to begin, how long a
step may wait for it, and what becomes of both."""

import statistics
from collections import Counter
from collections.abc import Mapping

from netgain.ledger.clock import Clock
from netgain.serving.engine.kv_load import Load, Tail
from netgain.serving.engine.load_choice import LoadChoice
from netgain.serving.engine.mailbox import Mailbox
from netgain.serving.engine.placing import Placing
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.step_plan import StepPlan, Work

SHARED_WAIT = 0.25  # of its time, that a step which several requests share waits at most for one of them
LEAST_SHARED_WAIT_S = 0.002


class ArrivingTail:
    """Arriving (see batch.py) over the tail of a load that is passing. In all at most `patience_s` is waited, by the step and
    everyone in it; `alone`: by nobody else."""

    def __init__(
        self,
        load: Load,
        tail: Tail,
        placing: Placing,
        mailbox: Mailbox,
        clock: Clock,
        patience_s: float,
        alone: bool,
        work: Work,
    ) -> None:
        self.load, self.tail, self.alone, self.work = load, tail, alone, work
        self.came_before = len(tail.took_s)
        self.waited_s = self.placed_s = 0.0
        self._placing, self._mailbox, self._clock = placing, mailbox, clock
        self._patience_s = patience_s

    @property
    def request_id(self) -> str:
        return self.load.sequence.id

    @property
    def starts(self) -> tuple[int, ...]:
        return self.tail.starts

    async def ready(self, group: int) -> bool:
        while True:
            now_s = self._clock.now()
            self._mailbox.take(now_s)
            self._placing.layers(self.load)
            placed_s = self._clock.now()
            self.placed_s += placed_s - now_s
            left_s = self._patience_s - self.waited_s
            if self.tail.placed > group or self.load.over or self.load.cancelled or left_s <= 0:
                return self.tail.placed > group
            await self._mailbox.wait(placed_s + left_s)
            self.waited_s += self._clock.now() - placed_s


class Overlaps:
    """Called by the step loop, on behalf of Tiering. `starts` are the first layers of the groups."""

    def __init__(
        self,
        scheduler: Scheduler,
        choice: LoadChoice,
        placing: Placing,
        mailbox: Mailbox,
        clock: Clock,
        starts: tuple[int, ...],
        counts: Counter[str],
    ) -> None:
        self._scheduler, self._choice, self._placing = scheduler, choice, placing
        self._mailbox, self._clock = mailbox, clock
        self._starts = starts
        self._counts = counts

    def tail(self, load: Load, first: int) -> Tail | None:
        """The blocks that should come by layers, of a load that begins with the one numbered `first`."""
        if load.generation.request.chunks is not None:  # computed apart, by another path
            return None
        blocks = self._choice.tail_blocks(load, first)
        return Tail(load.end - blocks, self._starts) if blocks else None

    def may_begin(self, load: Load, tail: Tail, now_s: float) -> bool:
        """Whether what follows can be computed now with hardly a wait."""
        if tail.passing or tail.barred or load.over:
            return False
        pass_s = self._choice.pass_s(load.sequence, load.base + load.end)
        return pass_s is not None and tail.hidden_by(pass_s, now_s)

    def begin(self, load: Load, tail: Tail) -> None:
        """What follows is computed in one of the next steps."""
        tail.passing = True
        self._scheduler.arriving(load.sequence, load.base + load.end)

    def of(self, plan: StepPlan, loads: Mapping[str, Load]) -> tuple[ArrivingTail, ...]:
        """What the plan computes behind tails of `loads`. A step that others share waits little for them."""
        found = []
        for work in plan.work:
            load = loads.get(work.sequence.id)
            if load is None or load.tail is None or not load.tail.passing:
                continue
            patience_s = load.until_s - self._clock.now()
            if len(plan.work) > 1:
                pass_s = self._choice.pass_s(work.sequence, load.base + load.end) or 0.0
                patience_s = min(patience_s, max(LEAST_SHARED_WAIT_S, pass_s * SHARED_WAIT))
            alone = len(plan.work) == 1
            found.append(
                ArrivingTail(load, load.tail, self._placing, self._mailbox, self._clock, patience_s, alone, work)
            )
        return tuple(found)

    def passed(self, one: ArrivingTail, now_s: float, seconds: float) -> bool:
        """The step took `seconds`. Whether all of the KV came in time; else the sequence is LOADING again."""
        load, tail = one.load, one.tail
        load.waited_s += one.waited_s
        if not tail.complete:
            self._counts["kv_overlaps_late"] += 1
            tail.passing, tail.barred = False, True
            load.since_s = now_s
            self._scheduler.not_arrived(load.sequence)
            return False
        self._counts["kv_overlaps"] += 1
        load.kv.overlapped_tokens += (load.end - max(load.next, tail.first)) * self._scheduler.block_tokens
        pass_s = self._choice.pass_s(load.sequence, load.base + load.end)
        hidden_s = sum(tail.took_s[one.came_before :])
        if one.alone and pass_s is not None and hidden_s > 0:
            self._learn(one, pass_s, hidden_s, seconds - one.placed_s - one.waited_s)
            # by groups of layers it may all take longer, too: what reads and checks them has more, and smaller, pieces to do;
            # by the usual one, since a late one would have been late for whole blocks, too, and links are known without those
            whole_s = self._choice.whole_s(load, tail.first)
            more_s = 0.0 if whole_s is None else statistics.median(tail.took_s) * len(tail.took_s) - whole_s
            self._choice.hiding.observed(hidden_s, seconds - pass_s + more_s)
        return True

    def _learn(self, one: ArrivingTail, pass_s: float, hidden_s: float, took_s: float) -> None:
        """What computing costs, as far as a pass beside a transfer tells: it took no less than one by itself, and at most as much
        longer as the transfer lasted meanwhile."""
        work, cost = one.work, self._choice.cost
        if took_s < pass_s:
            cost.observed(work.count, work.start, took_s)
        elif took_s - hidden_s > pass_s:
            cost.observed(work.count, work.start, took_s - hidden_s)
