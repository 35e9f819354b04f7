"""The client measures itself: a load generator that is late or busy blames its own delays on the server."""

import asyncio
import math
import time
from collections.abc import Sequence

import msgspec

from netgain.measuring.client.options import Budget
from netgain.measuring.client.quantile import quantile

_TICK_S = 0.02
_START_UP_CPU_S = 0.25  # below this a short run's fixed cost, not its load, makes the share


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What the client cost during a run: lateness, lag and CPU time (of this whole process) in seconds.

    `cpu_share` is the CPU time per second of the run: 1.0 is one core.
    """

    lateness_p50_s: float | None
    lateness_p99_s: float | None
    loop_lag_p99_s: float | None
    wall_s: float
    cpu_s: float
    cpu_share: float | None

    def over(self, budget: Budget) -> str | None:
        """Why the run is void, or None. Names the figure, the budget and the remedy."""
        for name, value, limit, remedy in (
            (
                "lateness p99",
                self.lateness_p99_s,
                budget.lateness_p99_s,
                "lower the rate or free a core for the client",
            ),
            ("event-loop lag p99", self.loop_lag_p99_s, budget.loop_lag_p99_s, "free a core for the client"),
        ):
            if value is not None and value > limit:
                return (
                    f"the client's {name} was {value * 1e3:.1f} ms, over its budget of {limit * 1e3:.1f} ms: {remedy}"
                )
        if self.cpu_share is not None and self.cpu_share > budget.cpu_share and self.cpu_s > _START_UP_CPU_S:
            return (
                f"the client used {self.cpu_share:.0%} of a core, over its budget of {budget.cpu_share:.0%}: "
                "lower the rate or run it on another machine"
            )
        return None


class Meter:
    """Watches the event loop, the process's CPU time and the requests in flight between `start` and `stop`."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._in_flight = 0
        self._changes: list[tuple[float, int]] = []
        self._started_s = time.monotonic()
        self._cpu_s = time.process_time()
        self._due_s = math.inf
        self._ticker: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._started_s = time.monotonic()
        self._cpu_s = time.process_time()
        self._ticker = asyncio.create_task(self._tick(), name="client meter")

    def change(self, by: int) -> None:
        """A request starts (+1) or ends (-1) now."""
        self._in_flight += by
        self._changes.append((time.monotonic(), self._in_flight))

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def changes(self) -> tuple[tuple[float, int], ...]:
        """(when, requests in flight from then on), in order of time."""
        return tuple(self._changes)

    async def stop(self, lateness_s: Sequence[float]) -> ClientLoad:
        """End the watch. `lateness_s` has one value per request sent."""
        stopped_s = time.monotonic()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait((self._ticker,))
            self._lags.append(max(0.0, stopped_s - self._due_s))
        wall_s = stopped_s - self._started_s
        cpu_s = time.process_time() - self._cpu_s
        known = wall_s > 0.0
        late = [seconds for seconds in lateness_s if math.isfinite(seconds)]
        return ClientLoad(
            lateness_p50_s=quantile(late, 0.5),
            lateness_p99_s=quantile(late, 0.99),
            loop_lag_p99_s=quantile(self._lags, 0.99),
            wall_s=wall_s,
            cpu_s=cpu_s,
            cpu_share=cpu_s / wall_s if known else None,
        )

    async def _tick(self) -> None:
        while True:
            self._due_s = time.monotonic() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self._lags.append(max(0.0, time.monotonic() - self._due_s))
