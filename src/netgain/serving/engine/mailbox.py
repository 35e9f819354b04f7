"""Outcomes on their way from jobs elsewhere to the step loop, and the loop's waiting for them."""

import asyncio
from collections import deque
from collections.abc import Callable

from netgain.ledger.clock import Clock

Event = Callable[[float], None]


class Mailbox:
    """`post` and `interrupt` may be called from any thread, the rest by the loop that takes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.wake: Callable[[], None] = lambda: None  # called, too, when something is posted; from any thread
        self._events: deque[Event] = deque()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def __bool__(self) -> bool:
        return bool(self._events)

    def post(self, event: Event) -> None:
        """`event` is called with the time when it is taken."""
        self._events.append(event)
        self.interrupt()
        self.wake()

    def take(self, now_s: float) -> None:
        while self._events:
            self._events.popleft()(now_s)

    async def wait(self, until_s: float) -> None:
        """Return when something was posted, at `until_s`, or when interrupted."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiter = (loop, waiter)
        try:
            if self._events:  # looked at after the waiter stands, so that no post is missed
                return
            alarm = asyncio.ensure_future(self._clock.sleep(until_s - self._clock.now()))
            try:
                await asyncio.wait({waiter, alarm}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                alarm.cancel()
        finally:
            self._waiter = None

    def interrupt(self) -> None:
        """End `wait`, if it waits."""
        waiting = self._waiter
        if waiting is not None:
            loop, waiter = waiting
            loop.call_soon_threadsafe(_wake, waiter)


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
