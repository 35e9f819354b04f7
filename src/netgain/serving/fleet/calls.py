"""Questions to an engine process that are answered by number, each in its own time."""

import asyncio
import itertools
from collections.abc import Callable

from netgain.errors import NetgainError, Unavailable


class Calls:
    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[bytes]] = {}

    async def ask(self, send: Callable[[int], None], within_s: float, what: str) -> bytes:
        """The answer to what `send` sends under a number. Raises Unavailable, saying that the engine did not do `what`, and
        whatever the answer or the end of the process raises."""
        call = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[call] = answer
        send(call)
        try:
            return await asyncio.wait_for(answer, within_s)
        except TimeoutError:
            raise Unavailable(f"the engine did not {what} within {within_s:.0f} s") from None
        finally:
            del self._open[call]

    def answered(self, call: int, found: bytes | NetgainError) -> None:
        answer = self._open.get(call)
        if answer is None or answer.done():
            return
        if isinstance(found, NetgainError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def fail_all(self, error: NetgainError) -> None:
        for call in self._open:
            self.answered(call, error)
