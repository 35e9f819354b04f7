"""Where the work of tiers runs: on a thread with an event loop of its own, so that a step that computes holds no exchange up
and no exchange holds up a step; or on the caller's loop, under whatever clock that has."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Job = Coroutine[Any, Any, None]


class Runner(Protocol):
    """Runs jobs on one event loop. A job may not raise."""

    def start(self, job: Job) -> None:
        """Begin a job and return at once."""
        ...

    def ask(self, question: Callable[[], T], within_s: float) -> T | None:
        """The answer of a plain function that looks at what the jobs work on; None when none comes in time. From any
        thread."""
        ...

    def close(self, last: Job, within_s: float) -> None:
        """Run one more job, at most for so long, and end. May be called twice."""
        ...


class OwnThread:
    """A daemon thread; nothing of it keeps a process alive."""

    def __init__(self, name: str = "kv-tiers") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, job: Job) -> None:
        if self._loop.is_closed():
            job.close()
            return
        asyncio.run_coroutine_threadsafe(job, self._loop)

    def ask(self, question: Callable[[], T], within_s: float) -> T | None:
        async def answer() -> T:
            return question()

        asking = answer()
        try:
            return asyncio.run_coroutine_threadsafe(asking, self._loop).result(within_s)
        except (TimeoutError, CancelledError):
            return None
        except RuntimeError:  # the loop is closed
            asking.close()
            return None

    def close(self, last: Job, within_s: float) -> None:
        if self._loop.is_closed():
            last.close()
            return
        future = asyncio.run_coroutine_threadsafe(last, self._loop)
        try:
            future.result(within_s)
        except TimeoutError:
            future.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(within_s)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()


class SameLoop:
    """Jobs are tasks of the loop that runs when they are started: for virtual time, and for tests."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, job: Job) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def ask(self, question: Callable[[], T], within_s: float) -> T | None:
        return question()

    def close(self, last: Job, within_s: float) -> None:
        """Whoever owns the loop lets it end what was begun."""
        last.close()
