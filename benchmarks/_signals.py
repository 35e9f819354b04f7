"""Ending a benchmark cleanly: servers left behind would disturb whatever runs next."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it on SIGTERM and SIGHUP as asyncio does on SIGINT."""
    task = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            loop.add_signal_handler(number, task.cancel)
    return await task
