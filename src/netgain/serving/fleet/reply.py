"""What comes back for a request, event by event, to whoever submitted it; several requests may share one receiver."""

from collections.abc import Callable

import msgspec

from netgain.errors import NetgainError, Unavailable
from netgain.serving.engine.request import Output


class EngineLost(Unavailable):
    """The engine process that worked on the request ended; the message names the cause."""


class Delivery(msgspec.Struct, frozen=True):
    """An output, when it was committed, and the step loop's pause before that step (monotonic seconds of the host)."""

    output: Output
    ended_s: float
    gap: tuple[float, float] | None


class Loss(msgspec.Struct, frozen=True):
    """The request ended without a last output: RequestRejected or Overloaded (it was not taken), or EngineLost."""

    request_id: str
    error: NetgainError


Event = Delivery | Loss
Receiver = Callable[[Event], None]


class Ticket:
    """A submitted request. Its receiver gets deliveries until one has a finish reason, or a loss; then nothing more."""

    def __init__(self, request_id: str, receiver: Receiver, abort: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._receiver = receiver
        self._abort = abort
        self._over = False

    def abort(self) -> None:
        """Give the request up, unless it is over. Its last output (with the trace) still comes."""
        if not self._over:
            self._abort(self.request_id)

    def tell(self, event: Event) -> None:
        """For the replica: pass an event on; after the last one the receiver hears nothing more."""
        if self._over:
            return
        self._over = isinstance(event, Loss) or event.output.finish_reason is not None
        self._receiver(event)
