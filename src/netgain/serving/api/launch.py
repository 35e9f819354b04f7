"""The first thing a server does: it launches the engine process, which loads torch for seconds, and imports its own half (a
web server, tokenizers) meanwhile. So nothing that takes long to import is imported at the top of this file."""

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from netgain.serving.fleet.fleet import Fleet
from netgain.serving.runtime.config import ServerConfig
from netgain.serving.runtime.uncollected import uncollected

SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def launch_server(config: ServerConfig, announce: Callable[[str, Mapping[str, Any], int | None], None]) -> None:
    """`run_server` with a fleet that is launched before this process is ready itself. Leaves no process behind."""
    fleet = Fleet(config.engine, config.fleet)
    try:
        with interruptible(), uncollected():
            await fleet.launch()
            from netgain.serving.api.server import run_server
        await run_server(config, fleet, announce)
    finally:
        await fleet.close()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Signals raise KeyboardInterrupt at once, in the middle of blocking work, which cleans up on its way out."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
