"""Work that SIGTERM, or the end of the terminal, ends as Ctrl-C does, so that what was measured is kept and what was started is
ended; in an event loop that costs the client as little as possible."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from netgain.event_loop import new_loop

T = TypeVar("T")


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run it in an event loop of its own; SIGTERM cancels it, and SIGHUP where it is not ignored (nohup). Raises
    KeyboardInterrupt when it was ended so and did not come to a result all the same."""
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(_cancelled_by_signals(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():  # which alone hears signals
        return await work
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, task.cancel)
    try:
        return await work
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
