"""The event loop of the processes through which tokens stream: the measuring client, the HTTP server and the engine."""

import asyncio
import importlib.util


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed (it has no form for Windows): reading a token of a stream takes two thirds of the time."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()
