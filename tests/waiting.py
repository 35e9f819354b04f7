"""Waiting for what another process or thread brings about. The limit only ends a test that would hang: no machine that is merely
busy reaches it."""

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 90.0


def wait_for(
    condition: Callable[[], object], *, said: str = "it did not happen in time", every_s: float = 0.02
) -> None:
    """Return once `condition` holds; it is asked every `every_s` seconds."""
    ends_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_s, said
        time.sleep(every_s)


async def until(condition: Callable[[], object], *, said: str = "it did not happen in time") -> None:
    """As `wait_for`, while the event loop goes on."""
    ends_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_s, said
        await asyncio.sleep(0.01)
