"""A medium behind a link of chosen latency and bandwidth, so that verdicts about moving KV can be given over a sweep of them."""

from collections.abc import AsyncIterator, Awaitable, Sequence

from netgain.cost.link import ShapedLink
from netgain.ledger.clock import Clock
from netgain.serving.tiers.medium import Data, GivenUp, Medium, Range, Usage


class ShapedMedium:
    """Each exchange takes at least what the link of its direction says, counted from its start; time that the medium itself
    takes is not added on top. Questions without bytes take the latency of `down`."""

    def __init__(self, inner: Medium, clock: Clock, down: ShapedLink, up: ShapedLink) -> None:
        self._inner = inner
        self.outlives = inner.outlives
        self._clock = clock
        self._down = down
        self._up = up

    async def read(self, keys: Sequence[bytes]) -> list[Data | None]:
        return await self._down_the_link(self._inner.read(keys))

    async def ranges(self, wanted: Sequence[Range]) -> list[Data | None]:
        return await self._down_the_link(self._inner.ranges(wanted))

    async def heads(self, keys: Sequence[bytes]) -> list[Data | None]:
        return await self._down_the_link(self._inner.heads(keys))

    async def write(self, key: bytes, data: Data) -> None:
        arrives_s = self._up.arrives_s(self._clock.now(), len(data))
        await self._inner.write(key, data)
        await self._until(arrives_s)

    async def has(self, keys: Sequence[bytes]) -> list[bool]:
        asked_s = self._clock.now()
        found = await self._inner.has(keys)
        await self._until(asked_s + self._down.latency_s)
        return found

    async def pin(self, keys: Sequence[bytes], for_s: float, owner: str | None = None) -> int:
        return await self._inner.pin(keys, for_s, owner)

    async def remove(self, keys: Sequence[bytes]) -> int:
        asked_s = self._clock.now()
        removed = await self._inner.remove(keys)
        await self._until(asked_s + self._down.latency_s)
        return removed

    async def pages(self) -> AsyncIterator[list[bytes]]:
        async for page in self._inner.pages():
            await self._until(self._clock.now() + self._down.latency_s)
            yield page

    async def ping(self) -> None:
        asked_s = self._clock.now()
        await self._inner.ping()
        await self._until(asked_s + self._down.latency_s)

    def begin(self) -> None:
        self._inner.begin()

    async def notices(self) -> tuple[str, ...]:
        return await self._inner.notices()

    async def shed(self) -> bool:
        return await self._inner.shed()

    def on_eviction(self, given_up: GivenUp) -> bool:
        return self._inner.on_eviction(given_up)

    def usage(self) -> Usage:
        return self._inner.usage()

    async def close(self) -> None:
        await self._inner.close()

    async def _down_the_link(self, reading: Awaitable[list[Data | None]]) -> list[Data | None]:
        started_s = self._clock.now()
        found = await reading
        await self._until(self._down.arrives_s(started_s, sum(len(data) for data in found if data is not None)))
        return found

    async def _until(self, at_s: float) -> None:
        left_s = at_s - self._clock.now()
        if left_s > 0:
            await self._clock.sleep(left_s)
