"""A server or bucket kept below a capacity of netgain's own, in bytes of objects under its prefix, by all engines that share it.

Each engine lists the prefix at its start and every so often after, in the background; counts what it stores; and removes what was
used longest ago once there is more than may be. Engines that share a store choose nearly the same objects, since all go by the
store's own times of use, or of writing where it has no others. Between two listings it may hold more by what the others wrote."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.medium import Data, Fault, FaultKind, GivenUp, Medium, Range, Usage

_log = logging.getLogger(__name__)
_AT_ONCE = 256  # objects removed in one call, or taken in without letting others at the loop
_FRESH = 1 << 16  # keys used during a listing that keep their place


class Listed(NamedTuple):
    """An object, and how long ago it was used, or written (None: not known)."""

    key: bytes
    size: int
    idle_s: float | None


class ListedMedium(Medium, Protocol):
    """`tells_use`: idle times count from the last use by anybody; False: from writing."""

    tells_use: bool

    def survey(self) -> AsyncIterator[list[Listed]]:
        """All objects, page by page, as `pages`; does not count as use."""
        ...


class BoundedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`relist_s`: how often the prefix is listed. `call_s` bounds each call of the background, `retry_s` is waited for after one
    that failed."""

    relist_s: float = 300.0
    call_s: float = 30.0
    retry_s: float = 5.0


class BoundedMedium:
    """At most about `capacity` bytes of objects. While more than a tenth of it, and more than a few objects, is still to be
    removed, writing is refused as full. Python's own overhead is about 250 bytes an object."""

    def __init__(self, inner: ListedMedium, capacity: int, options: BoundedOptions | None = None) -> None:
        self.outlives = inner.outlives
        self._inner, self._options = inner, options or BoundedOptions()
        self._kept = LRU(capacity)
        self._going: OrderedDict[bytes, int] = OrderedDict()  # given up, and still there
        self._going_bytes = 0
        self._fresh: OrderedDict[bytes, None] = OrderedDict()  # used or written since the listing began
        self._listed = False
        self._evictions = self._evicted_bytes = 0
        self._keeper: asyncio.Task[None] | None = None
        self._remover: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._inner.begin()
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def notices(self) -> tuple[str, ...]:
        return await self._inner.notices()

    async def shed(self) -> bool:
        return False

    async def read(self, keys: Sequence[bytes]) -> list[Data | None]:
        found = await self._inner.read(keys)
        for key, data in zip(keys, found, strict=True):
            if data is None:
                self._forget(key)
            else:
                self._learn(key, len(data))
        return found

    async def ranges(self, wanted: Sequence[Range]) -> list[Data | None]:
        found = await self._inner.ranges(wanted)
        for one, data in zip(wanted, found, strict=True):
            if data is None:
                self._forget(one.key)
            elif one.start == 0 and one.key in self._kept:
                self._learn(one.key, self._kept.size(one.key))
        return found

    async def heads(self, keys: Sequence[bytes]) -> list[Data | None]:
        return await self._inner.heads(keys)

    async def write(self, key: bytes, data: Data) -> None:
        self.begin()
        capacity = self._kept.capacity
        if len(data) > capacity:
            raise Fault(FaultKind.TOO_LARGE, f"{len(data):,} bytes, capacity {capacity:,}")
        if self._going_bytes > max(capacity // 10, 16 * len(data)):
            raise Fault(
                FaultKind.FULL, f"{self._going_bytes:,} bytes over its capacity of {capacity:,} are still to be removed"
            )
        try:
            await self._inner.write(key, data)
        except Fault as fault:
            if fault.kind is FaultKind.FULL:  # the server's own limit is lower: what is older makes room for the next
                self._make_room(max(8 * len(data), self._kept.used_bytes // 100))
            raise
        self._learn(key, len(data))

    async def has(self, keys: Sequence[bytes]) -> list[bool]:
        found = await self._inner.has(keys)
        for key, there in zip(keys, found, strict=True):
            if not there:
                self._forget(key)
        return found

    async def pin(self, keys: Sequence[bytes], for_s: float, owner: str | None = None) -> int:
        return 0

    async def remove(self, keys: Sequence[bytes]) -> int:
        removed = await self._inner.remove(keys)
        for key in keys:
            self._forget(key)
        return removed

    def pages(self) -> AsyncIterator[list[bytes]]:
        return self._inner.pages()

    async def ping(self) -> None:
        await self._inner.ping()

    def on_eviction(self, given_up: GivenUp) -> bool:
        return False

    def usage(self) -> Usage:
        """What is there is not known before the prefix was listed once."""
        return Usage(
            objects=len(self._kept) + len(self._going) if self._listed else None,
            bytes=self._kept.used_bytes + self._going_bytes if self._listed else None,
            capacity_bytes=self._kept.capacity,
            evictions=self._evictions,
            evicted_bytes=self._evicted_bytes,
        )

    async def close(self) -> None:
        tasks = {task for task in (self._keeper, self._remover) if task is not None and not task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._inner.close()

    def _learn(self, key: bytes, size: int) -> None:
        """It is there, and was used now."""
        self._fresh[key] = None
        self._fresh.move_to_end(key)
        if len(self._fresh) > _FRESH:
            self._fresh.popitem(last=False)
        self._add(key, size)

    def _add(self, key: bytes, size: int) -> None:
        self._going_bytes -= self._going.pop(key, 0)
        if size > self._kept.capacity:
            self._give_up([key], size)
            return
        before = self._kept.used_bytes - (self._kept.size(key) if key in self._kept else 0)
        gone = self._kept.add(key, size)
        self._give_up(gone, before + size - self._kept.used_bytes)

    def _forget(self, key: bytes) -> None:
        self._kept.remove(key)
        self._going_bytes -= self._going.pop(key, 0)

    def _make_room(self, size: int) -> None:
        capacity, before = self._kept.capacity, self._kept.used_bytes
        gone = self._kept.resize(max(0, before - size))
        self._kept.resize(capacity)
        self._give_up(gone, before - self._kept.used_bytes)

    def _give_up(self, keys: Sequence[bytes], size: int) -> None:
        """Remove them in the background; together they have `size` bytes."""
        if not keys:
            return
        each, rest = divmod(size, len(keys))
        for number, key in enumerate(keys):
            self._going[key] = each + (number < rest)
        self._going_bytes += size
        if self._remover is None or self._remover.done():
            self._remover = asyncio.get_running_loop().create_task(self._remove_going())

    async def _remove_going(self) -> None:
        while self._going:
            batch = [self._going.popitem(last=False) for _ in range(min(_AT_ONCE, len(self._going)))]
            try:
                async with asyncio.timeout(self._options.call_s):
                    await self._inner.remove([key for key, _ in batch])
            except (Fault, TimeoutError) as fault:
                _log.warning("KV over its capacity could not be removed, and is tried again: %s", fault)
                self._going.update((key, size) for key, size in batch if key not in self._kept)
                self._going_bytes = sum(self._going.values())
                await asyncio.sleep(self._options.retry_s)
                continue
            self._evictions += len(batch)
            self._evicted_bytes += sum(size for _, size in batch)
            self._going_bytes = sum(self._going.values())

    async def _keep(self) -> None:
        while True:
            try:
                await self._list()
            except (Fault, TimeoutError):
                await asyncio.sleep(self._options.retry_s)  # its tier tells of a server that is not well
            except Exception:
                _log.exception("what a KV tier holds cannot be listed")
                await asyncio.sleep(self._options.relist_s)
            else:
                await asyncio.sleep(self._options.relist_s)

    async def _list(self) -> None:
        self._fresh.clear()
        found: list[Listed] = []
        pages = aiter(self._inner.survey())
        while True:
            async with asyncio.timeout(self._options.call_s):
                page = await anext(pages, None)
            if page is None:
                break
            found += page
        ordered = await asyncio.to_thread(_oldest_first, found)
        there = {one.key for one in ordered}
        for key in [key for key in self._kept if key not in there and key not in self._fresh]:
            self._kept.remove(key)
        for number, one in enumerate(ordered):
            if one.key in self._kept:
                if self._inner.tells_use:
                    self._kept.touch(one.key)
            elif one.key not in self._going and one.key not in self._fresh:
                self._add(one.key, one.size)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        for key in self._fresh:
            self._kept.touch(key)
        self._listed = True


def _oldest_first(found: list[Listed]) -> list[Listed]:
    """Those of which it is not known come first."""
    return sorted(found, key=lambda one: -(float("inf") if one.idle_s is None else one.idle_s))
