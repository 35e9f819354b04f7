"""Memory of this process as a medium. What is read is the very object that was written: a reader that still holds it when
it is evicted keeps it alive, so there are no pins to leak and no buffer to reuse too early. For memory that outlives the
process, see shared_memory.py."""

from collections.abc import AsyncIterator, Sequence

from netgain.serving.tiers.eviction import Eviction
from netgain.serving.tiers.medium import Data, Fault, FaultKind, GivenUp, Range, Still, Usage
from netgain.serving.tiers.object import HEAD_BYTES
from netgain.serving.tiers.pinning import Pinning, pins_of


class DramMedium(Still):
    """At most `eviction.capacity` bytes of objects; Python's own overhead is about 200 bytes an object."""

    outlives = False

    def __init__(self, eviction: Eviction) -> None:
        self._eviction = eviction
        self._given_up: GivenUp | None = None
        self._kept: dict[bytes, bytes] = {}
        self._evictions = self._evicted_bytes = 0

    async def read(self, keys: Sequence[bytes]) -> list[Data | None]:
        found: list[Data | None] = []
        for key in keys:
            found.append(self._kept.get(key))
            self._eviction.touch(key)
        return found

    async def ranges(self, wanted: Sequence[Range]) -> list[Data | None]:
        found: list[Data | None] = []
        for key, start, end in wanted:
            data = self._kept.get(key)
            found.append(None if data is None else memoryview(data)[start:end])
            if start == 0:
                self._eviction.touch(key)
        return found

    async def heads(self, keys: Sequence[bytes]) -> list[Data | None]:
        return [None if (data := self._kept.get(key)) is None else memoryview(data)[:HEAD_BYTES] for key in keys]

    async def write(self, key: bytes, data: Data) -> None:
        if key in self._kept:
            self._eviction.touch(key)
            return
        if len(data) > self._eviction.capacity:
            raise Fault(FaultKind.TOO_LARGE, f"{len(data):,} bytes, capacity {self._eviction.capacity:,}")
        for gone in self._eviction.add(key, len(data)):
            data_gone = self._kept.pop(gone)
            self._evictions += 1
            self._evicted_bytes += len(data_gone)
            if self._given_up is not None:
                self._given_up(gone, data_gone)
        self._kept[key] = bytes(data)  # of a view, a copy, so that no larger buffer stays alive behind it

    async def has(self, keys: Sequence[bytes]) -> list[bool]:
        return [key in self._kept for key in keys]

    async def pin(self, keys: Sequence[bytes], for_s: float, owner: str | None = None) -> int:
        return self._eviction.pin(keys, for_s, owner) if isinstance(self._eviction, Pinning) else 0

    async def remove(self, keys: Sequence[bytes]) -> int:
        removed = 0
        for key in keys:
            if self._kept.pop(key, None) is not None:
                self._eviction.remove(key)
                removed += 1
        return removed

    async def pages(self) -> AsyncIterator[list[bytes]]:
        yield list(self._eviction)

    async def ping(self) -> None:
        return

    def on_eviction(self, given_up: GivenUp) -> bool:
        self._given_up = given_up
        return True

    def usage(self) -> Usage:
        return Usage(
            objects=len(self._kept),
            bytes=self._eviction.used_bytes,
            capacity_bytes=self._eviction.capacity,
            evictions=self._evictions,
            evicted_bytes=self._evicted_bytes,
            pins=pins_of(self._eviction),
        )

    async def close(self) -> None:
        for key in list(self._kept):
            self._eviction.remove(key)
        self._kept.clear()
