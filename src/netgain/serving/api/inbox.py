"""What has come for one reader and was not looked at yet. Most of it is dealt with in a callback of the event loop, which costs a
fraction of waking a task: that resumes every layer of the web framework which awaits it."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """Filled and read on one event loop, by one reader. `items` are there to be taken, the oldest first."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._at_once: Callable[[], bool] | None = None
        self._due = False  # what came will be looked at in this turn of the event loop

    def put(self, item: Item) -> None:
        self.items.append(item)
        if self._waiting is not None and not self._due:
            self._due = True
            self._loop.call_soon(self._look)

    async def wait(self, at_once: Callable[[], bool] | None = None) -> None:
        """Until there are items. `at_once` is called first when some have come, all that came in one turn of the event loop
        together: True if it has dealt with everything, and the wait goes on. What it raises is raised here."""
        if self.items:
            return
        self._waiting, self._at_once = self._loop.create_future(), at_once
        try:
            await self._waiting
        finally:
            self._waiting = self._at_once = None

    def _look(self) -> None:
        self._due = False
        waiting = self._waiting
        if waiting is None or waiting.done():
            return
        try:
            if self._at_once is not None and self._at_once():
                return
        except Exception as error:
            waiting.set_exception(error)
        else:
            waiting.set_result(None)
