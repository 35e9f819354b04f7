"""Time as the engine sees it: every wait goes through a Clock, so the same loop runs on the wall or on virtual time."""

import asyncio
import heapq
import itertools
import time
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Monotonic seconds. On Linux the wall form is one clock for all processes of a host."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class WallClock:
    """The host's monotonic clock (shared by the processes of one host)."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class VirtualClock:
    """Time that moves only when every task waits: `run` advances to the earliest sleeper, in a stable order."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + max(0.0, seconds), next(self._order), wake))
        await wake

    async def run(self, main: "asyncio.Task[T]") -> T:
        """Advance virtual time until `main` is done; raises RuntimeError when all tasks wait for something else."""
        while not main.done():
            for _ in range(8):  # let woken tasks reach their next wait
                await asyncio.sleep(0)
            if main.done():
                break
            while self._sleepers and self._sleepers[0][2].done():
                heapq.heappop(self._sleepers)  # a cancelled sleeper
            if not self._sleepers:
                raise RuntimeError("virtual clock: the main task waits, but nothing sleeps on this clock")
            self._now, _, wake = heapq.heappop(self._sleepers)
            wake.set_result(None)
        return main.result()
