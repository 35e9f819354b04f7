"""Time as the engine sees it: every wait goes through a Clock, so the same loop runs on the wall or on virtual time."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Collection
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
        """Advance virtual time until `main` is done and give its result (or raise what it raised).

        Raises RuntimeError, and cancels `main`, when every task waits for something that is not this clock. Time never
        moves while a task can still run, so no chain of tasks is too long; waits on sockets or threads do not count as
        running, and do not belong under a virtual clock.
        """
        while True:
            await _settle()
            if main.done():
                return main.result()
            while self._sleepers and self._sleepers[0][2].done():
                heapq.heappop(self._sleepers)  # a cancelled sleeper
            if not self._sleepers:
                waits = [str(task.get_coro()) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
                main.cancel("virtual clock: nothing sleeps")
                raise RuntimeError(
                    f"virtual clock at {self._now} s: every task waits, but none of them on this clock: {'; '.join(waits)}. "
                    "Let the code under test sleep through the Clock that it was given"
                )
            self._now, _, wake = heapq.heappop(self._sleepers)
            wake.set_result(None)


_ROUNDS_WITHOUT_A_READY_QUEUE = 64


async def _settle() -> None:
    """Return when no other task of this loop can run. asyncio has no public question for that; its own loops keep what
    is ready in a queue, and for another loop a number of rounds well above any chain of tasks here must do."""
    ready: Collection[object] | None = getattr(asyncio.get_running_loop(), "_ready", None)
    if ready is None:
        for _ in range(_ROUNDS_WITHOUT_A_READY_QUEUE):
            await asyncio.sleep(0)
        return
    await asyncio.sleep(0)
    while ready:
        await asyncio.sleep(0)
