"""What is known of one engine process while it lives; its replica decides what follows from that."""

import asyncio
import time
from collections.abc import Callable

from netgain.serving.fleet.process import ManagedProcess
from netgain.serving.runtime.messages import Failed, FromEngine
from netgain.serving.runtime.wire import Channel


class Life:
    """What is known of one process: its connection, when it was last heard, how its end announced itself."""

    def __init__(
        self,
        process: ManagedProcess,
        received: Callable[["Life", FromEngine], None],
        closed: Callable[["Life", Exception | None], None],
    ) -> None:
        self.process = process
        self.channel: Channel[FromEngine] = Channel(
            FromEngine, lambda message: received(self, message), lambda cause: closed(self, cause)
        )
        self.pulse: Channel[FromEngine] = Channel(
            FromEngine, lambda message: received(self, message), lambda cause: None
        )
        self.heard_s = time.monotonic()
        self.in_step_s: float | None = None
        self.ready = False
        self.failed: Failed | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(self, reason: str) -> None:
        """Note that the process is of no more use; the first reason stands."""
        if not self.ended.done():
            self.ended.set_result(reason)
