"""What comes back for one request: its outputs as they arrive, or the error that ended it."""

import asyncio
from collections.abc import Callable

import msgspec

from netgain.errors import Unavailable
from netgain.serving.engine.request import Output


class EngineLost(Unavailable):
    """The engine process that worked on the request ended; the message names the cause."""


class Delivery(msgspec.Struct, frozen=True):
    """An output, and when the engine process sent it (monotonic seconds of the host)."""

    output: Output
    sent_s: float


class Reply:
    """The outputs of one request, in order; the last one has a finish reason.

    Whoever holds a reply either reads it to that end or calls `abort`; then the replica forgets it.
    """

    def __init__(self, request_id: str, abort: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._abort = abort
        self._events: asyncio.Queue[Delivery | Exception] = asyncio.Queue()
        self._over = False

    async def next(self) -> Delivery:
        """The next output. Raises RequestRejected or Overloaded (not taken) or EngineLost; call not again after the end."""
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        return event

    def abort(self) -> None:
        """Give the request up, unless it is over. The engine still sends its last output ("abort") with the trace."""
        if not self._over:
            self._abort(self.request_id)

    def deliver(self, delivery: Delivery) -> None:
        """For the replica."""
        self._over = delivery.output.finish_reason is not None
        self._events.put_nowait(delivery)

    def fail(self, error: Exception) -> None:
        """For the replica."""
        self._over = True
        self._events.put_nowait(error)
