"""The step-cost curve that an engine uses: read from the cache at its start, measured where there is none, and measured again
while the engine is idle once it is old or recent steps disagree with it."""

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from netgain.cost.step_cost import StepCost
from netgain.cost.step_cost_store import StepCostStore
from netgain.errors import Overloaded
from netgain.ledger.clock import Clock
from netgain.ledger.records import StepRecord
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.protocols import Executor
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.step_probe import DEFAULT_BATCH, Limits, StepMeasurement

BACKGROUND_BUDGET_S = 10.0  # of computing, spread over idle times
RETRY_S = 600.0  # after a measurement that came to nothing
SETTLED_S = 3600.0  # a curve younger than this is not measured again because steps disagree
SAMPLE, FEWEST = 64, 16  # decode steps that are compared with the curve

_log = logging.getLogger(__name__)


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """When an engine that has been idle for `idle_s` measures its curve again: after `max_age_s`, or when the median of its
    recent decode steps is off the curve by more than the share `margin`."""

    idle_s: float = 5.0
    max_age_s: float = 7 * 86_400.0
    margin: float = 0.25


def step_limits(scheduler: Scheduler) -> Limits:
    """What a step of this scheduler may hold."""
    return Limits(
        block_tokens=scheduler.block_tokens,
        max_tokens=scheduler.max_batch_tokens,
        max_length=scheduler.max_length,
    )


class StepCurve:
    """Owned by an engine and used on its task only; `gauges` may be read from any thread.

    `cost` is the curve in use, None before there is one; `cached` says that it was read and not measured by this process.
    Without `upkeep` nothing is measured unless `measure` is called; without `store` nothing is kept.
    """

    def __init__(
        self,
        executor: Executor,
        pool: BlockPool,
        clock: Clock,
        limits: Limits,
        subject: Mapping[str, str],
        *,
        store: StepCostStore | None = None,
        upkeep: Upkeep | None = None,
        today: Callable[[], float] = time.time,
    ) -> None:
        self.cost = None if store is None else store.load(subject)
        self.cached = self.cost is not None
        self._executor, self._pool, self._clock, self._limits = executor, pool, clock, limits
        self._subject, self._store, self._upkeep, self._today = dict(subject), store, upkeep, today
        self._running: StepMeasurement | None = None
        self._since_s = clock.now()  # steps from here on are compared with the curve
        self._not_before_s = self._since_s
        self._drift: float | None = None

    @property
    def age_s(self) -> float | None:
        """Seconds since the curve was measured; None when there is none, or none with a date."""
        if self.cost is None or self.cost.measured_at is None:
            return None
        return max(0.0, self._today() - self.cost.measured_at)

    def gauges(self) -> dict[str, float]:
        """For metrics: what is known of the curve in use."""
        values = {"step_cost_age_s": self.age_s, "step_cost_drift": self._drift}
        known = {name: value for name, value in values.items() if value is not None}
        return known if self.cost is None else {**known, "step_cost_cached": float(self.cached)}

    async def measure(self, budget_s: float, largest_batch: int = DEFAULT_BATCH) -> StepCost:
        """Measure now, without a pause, for about `budget_s`. Raises Overloaded when there is no room, ExecutorFailed when a
        step fails."""
        if not self._pool.available:
            raise Overloaded("no KV block is free for measuring the step cost: retry when requests have ended")
        measurement = self._measurement(budget_s, largest_batch, in_background=False)
        while await measurement.advance():
            pass
        self._running = None
        return self._take(measurement)

    def due_in_s(self, idle_s: float, steps: Sequence[StepRecord]) -> float | None:
        """In how many seconds `advance` should be called if the engine, idle for `idle_s`, stays so; None: never. `steps` are
        its newest, in order."""
        if self._upkeep is None:
            return None
        rest_s = max(0.0, self._upkeep.idle_s - idle_s, self._not_before_s - self._clock.now())
        age_s = self.age_s
        if self._running is not None or age_s is None:
            return rest_s
        self._drift = self._observed_drift(steps)
        if self._drift is not None and abs(self._drift - 1.0) > self._upkeep.margin and age_s > SETTLED_S:
            return rest_s
        return max(rest_s, self._upkeep.max_age_s - age_s)

    async def advance(self) -> None:
        """Run one step of a measurement in the background; the last one brings the new curve into use."""
        if self._running is None:
            largest_batch = DEFAULT_BATCH if self.cost is None else self.cost.largest_batch
            self._running = self._measurement(BACKGROUND_BUDGET_S, largest_batch, in_background=True)
        try:
            if await self._running.advance():
                return
            self._take(self._running)
        except Exception as error:  # whatever it is, serving goes on
            self._not_before_s = self._clock.now() + RETRY_S
            _log.warning("the step cost could not be measured, next try in %.0f s: %r", RETRY_S, error)
        self._running = None

    def _measurement(self, budget_s: float, largest_batch: int, *, in_background: bool) -> StepMeasurement:
        return StepMeasurement(
            self._executor,
            self._pool,
            self._clock,
            self._limits,
            budget_s,
            largest_batch,
            in_background=in_background,
        )

    def _take(self, measurement: StepMeasurement) -> StepCost:
        """Use and keep what was measured. Raises UsageError when that is nothing."""
        self.cost, self.cached = measurement.result(self._subject, self._today()), False
        self._since_s, self._drift = self._clock.now(), None
        if self._store is not None:
            try:
                self._store.save(self.cost)
            except OSError as error:
                _log.warning("the step cost cannot be kept, so the next start measures it again: %s", error)
        return self.cost

    def _observed_drift(self, steps: Sequence[StepRecord]) -> float | None:
        """Median of executor time over what the curve says, of recent steps that only decode or verify; None when too few
        of them lie within the curve's range."""
        ratios: list[float] = []
        for step in reversed(steps):
            if step.started_s < self._since_s or len(ratios) == SAMPLE:
                break
            if (ratio := self._ratio(step)) is not None:
                ratios.append(ratio)
        return statistics.median(ratios) if len(ratios) >= FEWEST else None

    def _ratio(self, step: StepRecord) -> float | None:
        assert self.cost is not None
        shares = step.shares
        if not shares or any(share.prefill_tokens for share in shares):
            return None
        tokens = sum(share.decode_tokens + share.draft_tokens for share in shares)
        context = sum(share.context_tokens for share in shares) - tokens
        size = len(shares)
        expected = self.cost.verify(size, max(1, round(tokens / size)), round(context / size))
        return (step.executed_s - step.ready_s) / expected.seconds if expected.inside else None
