"""Whether the server takes requests, and how many it is answering: what a shutdown waits for."""

import asyncio
import contextlib
from collections.abc import Iterator

from netgain.serving.api.errors import ApiError


class Lifecycle:
    """Serving until `drain`; used from one event loop."""

    def __init__(self) -> None:
        self.draining = False
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Around everything that one request causes. Raises ApiError 503 when the server is ending."""
        if self.draining:
            raise ApiError(
                503,
                "the server is shutting down and takes no new requests",
                code="shutting_down",
                headers={"connection": "close"},
            )
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    def drain(self) -> None:
        """From now on requests are refused; those that run go on."""
        self.draining = True

    async def idle(self) -> None:
        """Wait until no request runs."""
        await self._idle.wait()
