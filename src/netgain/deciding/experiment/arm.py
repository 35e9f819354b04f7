"""The two sides of an experiment, seen only through HTTP and through what the operating system tells of their processes."""

from collections.abc import Mapping
from typing import Protocol

import msgspec


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """One look at an arm's processes, children included: CPU seconds since their start and resident memory."""

    cpu_s: float
    resident_bytes: int
    processes: int


class Arm(Protocol):
    """A server under test. Owned by whoever called `start`, who must call `stop` on every path, also on cancellation."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str:
        """Base URL without /v1. Known after `start`."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Sent with every request to it, such as an API key; shown and kept nowhere."""
        ...

    @property
    def command(self) -> tuple[str, ...]:
        """How a user would start the same server."""
        ...

    async def start(self) -> None:
        """Begin to start. Returns at once. Raises Unavailable when the server cannot be started at all."""
        ...

    async def ready(self, timeout_s: float) -> None:
        """Wait until requests are served. Raises Unavailable with the end of the server's log otherwise."""
        ...

    async def reset(self) -> str:
        """Make the next block start from the declared cache state; returns that state in words. Verified by counts later."""
        ...

    def observe(self) -> Observed | None:
        """CPU and memory now; None when the processes cannot be seen."""
        ...

    async def stop(self) -> None:
        """End the server and every process it started, within bounded time. May be called twice, and before `start`."""
        ...
