"""Work that SIGTERM ends as Ctrl-C does, so that what was measured is kept and what was started is ended."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run it in an event loop of its own; SIGTERM cancels it. Raises KeyboardInterrupt when it was ended so and did not come to
    a result all the same."""
    try:
        return asyncio.run(_cancelled_by_sigterm(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _cancelled_by_sigterm(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():  # which alone hears signals
        return await work
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await work
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
