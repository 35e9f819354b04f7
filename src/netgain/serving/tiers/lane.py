"""What one tier is still to store, apart from those who had it to store."""

import asyncio
from collections import deque
from collections.abc import Callable

from netgain.serving.tiers.medium import PURGED, Data, FaultKind, Told
from netgain.serving.tiers.tier import Tier


class Lane:
    """What one tier is still to store: first come, first served, in a bounded number of bytes, by one task that lives
    while there is something to do."""

    def __init__(self, tier: Tier, room: int) -> None:
        self.tier = tier
        self.bytes = 0
        self.dropped = 0
        self.coming = 0  # bytes that are going to be offered
        self.room = room
        self._waiting: deque[tuple[bytes, Data]] = deque()
        self._queued: dict[bytes, list[Told]] = {}  # whom to tell what becomes of it
        self._worker: asyncio.Task[None] | None = None
        self._storing: asyncio.Task[FaultKind | None] | None = None

    def offer(self, key: bytes, data: Data, told: Told | None = None) -> bool:
        """Whether it is queued now; `told` is called of such, once it is stored or is not going to be."""
        if key in self._queued:
            self._queued[key] += [] if told is None else [told]
            return True
        if self.bytes + len(data) > self.room:
            self.dropped += 1
            return False
        self._waiting.append((key, data))
        self._queued[key] = [] if told is None else [told]
        self.bytes += len(data)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())
        return True

    def has_room(self, data: Data) -> bool:
        return self.bytes + self.coming + len(data) <= self.room

    async def settle(self) -> None:
        if self._worker is not None:
            await self._worker

    async def forget(self, condemned: Callable[[bytes, Data], bool]) -> int:
        """Take what is condemned out of the queue, and wait until what was being stored when this was called is; how many were
        taken out."""
        storing, queued = self._storing, list(self._waiting)
        kept = queued[: int(storing is not None)]
        gone: list[tuple[bytes, Data]] = []
        for one in queued[len(kept) :]:
            (gone if condemned(*one) else kept).append(one)
        self._waiting = deque(kept)
        for key, _ in gone:
            _tell(self._queued.pop(key), PURGED)
        self.bytes -= sum(len(data) for _, data in gone)
        if storing is not None:
            await asyncio.wait({storing})
        return len(gone)

    async def close(self) -> None:
        if self._worker is not None and not self._worker.done():  # a loop that ended has no more to say to one that is
            self._worker.cancel()
            await asyncio.wait({self._worker})
        self._waiting.clear()
        self._queued.clear()
        self.bytes = 0
        await self.tier.close()

    async def _work(self) -> None:
        while self._waiting:
            key, data = self._waiting[0]
            self._storing = asyncio.ensure_future(self.tier.store(key, data))
            try:
                why = await self._storing
            finally:
                self._storing = None
                self._waiting.popleft()
                told = self._queued.pop(key)
                self.bytes -= len(data)
            _tell(told, why)


def _tell(whom: list[Told], why: str | None) -> None:
    for told in whom:
        told(why)
