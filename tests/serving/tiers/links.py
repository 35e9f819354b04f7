"""A link between a client and a real server, as a TCP proxy: with latency, and with connections that die without a word."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Link:
    """`latency_s` is added to every answer; `asked` pieces were sent to the server so far. `accepted` connections were
    made so far; those of them that are `silent` pass nothing on any more and stay open, as behind a NAT that
    has forgotten them."""

    def __init__(self, to_port: int, latency_s: float = 0.0) -> None:
        self.latency_s = latency_s
        self.accepted = 0
        self.asked = 0
        self.port = 0
        self._to_port = to_port
        self._silent = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def silence(self) -> None:
        """Every connection that there is; not those that come."""
        self._silent = self.accepted

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.accepted = self.accepted, self.accepted + 1
        back, there = await asyncio.open_connection("127.0.0.1", self._to_port)
        for pump in (self._pump(reader, there, number, answers=False), self._pump(back, writer, number, answers=True)):
            self._tasks.add(task := asyncio.create_task(pump))
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int, *, answers: bool
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.asked += not answers
                await asyncio.sleep(self.latency_s * answers)
                if number >= self._silent:
                    writer.write(data)
                    await writer.drain()
        writer.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def link(to_port: int, latency_s: float = 0.0) -> AsyncIterator[Link]:
    one = Link(to_port, latency_s)
    listening = await asyncio.start_server(one.connected, "127.0.0.1", 0)
    one.port = listening.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        listening.close()
        await one.close()
