"""A tier: a medium that can be relied on. Every wait is bounded, every object is checked, every outcome is counted, and
nothing that goes wrong with the medium is an exception to who asks: it is a miss, or an object that was not kept."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from netgain.cost.link import LinkFit
from netgain.ledger.clock import Clock
from netgain.serving.tiers.breaker import Breaker
from netgain.serving.tiers.exchanges import Exchanges
from netgain.serving.tiers.layered import LayeredObject
from netgain.serving.tiers.medium import Data, Fault, FaultKind, GivenUp, Medium
from netgain.serving.tiers.object import ADDRESS_BYTES, Expected, Reason, Refused, StoredObject, check_age, unpack
from netgain.serving.tiers.tier_stats import Direction, TierStats

T = TypeVar("T")
W = TypeVar("W")
_ASKED_ABOUT = 64  # keys in one question


class TierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`timeout_s` and what its bytes take at `slowest_bytes_per_s` bound one exchange of at most `group` objects, or about as
    many bytes of more, so that a slow medium gets through and a hung one costs one such wait; `at_once` go on together.
    `object_bytes` is what an object may be expected to have before one was met. `pause_s`: how long nothing is written after
    the medium was full or read-only.
    `retention_s`: what was written longer ago is never used, and is removed when it is met (and by sweeps, see inventory.py);
    None: no age is too old."""

    timeout_s: float = 2.0
    group: int = 16
    at_once: int = 4
    slowest_bytes_per_s: float = 8e6
    object_bytes: int = 0
    pause_s: float = 30.0
    failures: int = 1
    open_s: float = 1.0
    longest_open_s: float = 60.0
    retention_s: float | None = None


class Tier:
    """Keeps packed objects (see object.py) under their addresses. Called from one event loop; owns its medium.

    Methods raise ValueError for keys that are none, and nothing else.
    """

    def __init__(
        self,
        name: str,
        medium: Medium,
        clock: Clock,
        options: TierOptions | None = None,
        expected: Expected | None = None,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self.name, self.outlives = name, medium.outlives
        self.medium = medium
        self.notices: int | None = None  # how many things its own settings have against it; None: it was not asked
        self._clock = clock
        self._options = options or TierOptions()
        self._expected = expected
        self._unix_s = unix_s
        self._paused_until_s = 0.0
        self._hits = self._misses = 0
        self._loaded, self._stored = Direction(), Direction()
        self._exchanges = Exchanges(
            name,
            clock,
            Breaker(self._options.failures, self._options.open_s, self._options.longest_open_s),
            medium.ping,
            lambda: self.code_link,
            timeout_s=self._options.timeout_s,
            at_once=self._options.at_once,
            slowest_bytes_per_s=self._options.slowest_bytes_per_s,
        )
        self._refused: Counter[Reason] = Counter()
        self._unread: Counter[FaultKind] = Counter()
        self._unwritten: Counter[FaultKind] = Counter()
        self._other: Counter[FaultKind] = Counter()

    async def get(
        self, keys: Sequence[bytes], within_s: float | None = None, *, judged: bool = False
    ) -> list[Data | None]:
        """The checked object under each key, None where there is none to use. At most `within_s` is waited in all; what came
        by then is returned. `judged`: the caller looks further into each, and says of each by `judge` what it is."""
        _check_keys(keys)

        def whole(key: bytes, data: Data) -> Data:
            self._check_age(unpack(data, key, self._expected))
            return data

        found = await self._get(
            keys,
            within_s,
            self.medium.read,
            whole,
            lambda key: key,
            lambda key: self._object_bytes,
            self._options.group,
        )
        self._count(found, judged)
        return found

    def judge(self, refused: Refused | None, useful: bool = True) -> None:
        """Of an object that `get` gave: a hit, unless it was refused or is of no use."""
        useful = useful and refused is None
        self._hits += useful
        self._misses += not useful
        if refused is not None:
            self._refuse(refused)

    async def get_layers(
        self, objects: Sequence[LayeredObject], end: int, within_s: float | None = None
    ) -> list[Data | None]:
        """As `get`, of each object the layers from where it was read before up to the one before `end`."""
        began = [one.begun for one in objects]

        def layers(one: LayeredObject, data: Data) -> memoryview | None:
            return one.take(end, data, self._expected, self._check_age)

        async def read(group: Sequence[LayeredObject]) -> list[Data | None]:
            return await self.medium.ranges([one.wanted(end) for one in group])

        group = self._options.group * min((one.in_one(end) for one in objects), default=1)
        found = await self._get(
            objects, within_s, read, layers, lambda one: one.address, lambda one: one.wanted_bytes(end), group
        )
        self._count([data for data, before in zip(found, began, strict=True) if not before])
        return found

    async def _get(
        self,
        wanted: Sequence[W],
        within_s: float | None,
        read: Callable[[Sequence[W]], Awaitable[list[Data | None]]],
        use: Callable[[W, Data], Data | None],
        key_of: Callable[[W], bytes],
        size_of: Callable[[W], int],
        group_size: int,
    ) -> list[Data | None]:
        """What `use`, which raises Refused, makes of what `read` gives, group by group."""
        until_s = None if within_s is None else self._clock.now() + within_s
        found: list[Data | None] = []
        for group in _groups(wanted, group_size):
            started_s = self._clock.now()
            try:
                came = await self._exchanges.transfer(partial(read, group), sum(map(size_of, group)), until_s)
            except Fault as fault:
                self._unread[fault.kind] += len(wanted) - len(found)
                found += [None] * (len(wanted) - len(found))
                break
            size = sum(len(data) for data in came if data is not None)
            self._loaded.add(sum(data is not None for data in came), size, self._clock.now() - started_s)
            refused = []
            for one, data in zip(group, came, strict=True):
                try:
                    found.append(None if data is None else use(one, data))
                except Refused as why:
                    self._refuse(why)
                    found.append(None)
                    refused.append(key_of(one))
            if refused:
                await self.delete(refused)
        return found

    @property
    def _object_bytes(self) -> int:
        """What an object is expected to have: the mean of those met, or what was said before."""
        met = self._loaded if self._loaded.objects else self._stored
        return met.bytes // met.objects if met.objects else self._options.object_bytes

    def _check_age(self, found: StoredObject) -> None:
        check_age(found, self._options.retention_s, self._unix_s())

    def _count(self, found: Sequence[object], judged: bool = False) -> None:
        there = sum(data is not None for data in found)
        self._hits += 0 if judged else there
        self._misses += len(found) - there

    def _refuse(self, why: Refused) -> None:
        self._refused[why.reason] += 1
        self._exchanges.say(why.reason, f"holds an object that is refused ({why}); it is removed and counted")

    async def put(self, key: bytes, data: Data) -> bool:
        """Keep a packed object; whether it is kept now, as far as one can know."""
        return await self.store(key, data) is None

    async def store(self, key: bytes, data: Data) -> FaultKind | None:
        """As `put`; why it is not kept."""
        _check_keys([key])
        try:
            if self._clock.now() < self._paused_until_s:
                raise Fault(FaultKind.PAUSED, "not written: the medium was full or read-only lately")
            started_s = self._clock.now()
            await self._exchanges.transfer(partial(self.medium.write, key, data), len(data))
        except Fault as fault:
            self._unwritten[fault.kind] += 1
            if fault.kind in (FaultKind.FULL, FaultKind.READ_ONLY):
                self._paused_until_s = self._clock.now() + self._options.pause_s
                self._exchanges.say(
                    fault.kind, f"is {fault.kind.replace('_', '-')}, objects are read but none are kept: {fault}"
                )
            return fault.kind
        self._stored.add(1, len(data), self._clock.now() - started_s)
        return None

    async def heads(self, keys: Sequence[bytes]) -> list[Data | None] | None:
        """The first HEAD_BYTES under each key, unchecked; None when the medium did not say."""
        _check_keys(keys)
        found: list[Data | None] = []
        try:
            for group in _groups(keys, self._options.group):
                found += await self._exchanges.ask(partial(self.medium.heads, group))
        except Fault as fault:
            self._other[fault.kind] += 1
            return None
        return found

    async def peek(self, keys: Sequence[bytes]) -> list[Data | None] | None:
        """As `get`, but nothing is checked, counted or removed; None when the medium did not say. For who looks after it."""
        _check_keys(keys)
        found: list[Data | None] = []
        try:
            for group in _groups(keys, self._options.group):
                size = len(group) * self._object_bytes
                found += await self._exchanges.transfer(partial(self.medium.read, group), size)
        except Fault as fault:
            self._other[fault.kind] += 1
            return None
        return found

    async def contains(self, keys: Sequence[bytes], within_s: float | None = None) -> list[bool]:
        """Whether each key is there, as far as the medium says so within that time: a hint, since it may be evicted, or be
        refused, before it is read."""
        _check_keys(keys)
        until_s = None if within_s is None else self._clock.now() + within_s
        found: list[bool] = []
        try:
            for group in _groups(keys, _ASKED_ABOUT):
                found += await self._exchanges.ask(partial(self.medium.has, group), until_s)
        except Fault as fault:
            self._other[fault.kind] += 1
        return found + [False] * (len(keys) - len(found))

    async def pin(self, keys: Sequence[bytes], for_s: float, owner: str | None = None) -> int:
        """Keep keys from eviction for so long (see Medium.pin); how many are so kept now."""
        _check_keys(keys)
        try:
            pinned = await self._exchanges.ask(partial(self.medium.pin, keys, for_s, owner))
        except Fault as fault:
            self._other[fault.kind] += 1
            return 0
        pins = self.medium.usage().pins
        if pins is not None and pins.refused:
            self._exchanges.say(
                "pins",
                f"does not pin all that is asked: a tenant has its share of the {pins.room_bytes:,} bytes for pins, which "
                f"{pins.tenants} tenants ask for. Ask for fewer or shorter pins (netgain.pin_s, engine.kv.pin_s), or make the "
                "tier larger; what is not pinned is kept as any other KV",
            )
        return pinned

    async def delete(self, keys: Sequence[bytes]) -> int | None:
        """Forget keys; how many were there, None when that failed (they may be there still)."""
        _check_keys(keys)
        removed = 0
        try:
            for group in _groups(keys, self._options.group):
                removed += await self._exchanges.ask(partial(self.medium.remove, group))
        except Fault as fault:
            self._other[fault.kind] += 1
            return None
        return removed

    async def keys(self) -> list[bytes] | None:
        """All keys; None when the medium did not say."""
        found: list[bytes] = []
        async for page in self.pages():
            if page is None:
                return None
            found += page
        return found

    async def pages(self) -> AsyncIterator[list[bytes] | None]:
        """All keys, page by page, each bounded; ends with None when the medium did not say, which is not held against it."""
        pages = aiter(self.medium.pages())
        try:
            while (page := await self._exchanges.read_on(partial(anext, pages, None))) is not None:
                yield page
        except Fault as fault:
            self._other[fault.kind] += 1
            yield None

    def on_eviction(self, given_up: GivenUp) -> bool:
        """See Medium."""
        return self.medium.on_eviction(given_up)

    @property
    def load_link(self) -> LinkFit | None:
        """What loading costs, from the last exchanges; None before the first."""
        return self._loaded.link.fit()

    @property
    def code_link(self) -> LinkFit | None:
        """By what it is decided how objects for this tier are coded: what loading costs or, before the first load, storing."""
        loading = self._loaded.link.fit()
        return self._stored.link.fit() if loading is None or loading.bytes_per_s is None else loading

    @property
    def usable(self) -> bool:
        """Whether `get` would ask the medium at all; starts the probe of a broken one that is due."""
        return self._exchanges.usable

    def stats(self) -> TierStats:
        return TierStats(
            name=self.name,
            hits=self._hits,
            misses=self._misses,
            loaded=self._loaded.flow(),
            stored=self._stored.flow(),
            refused=dict(self._refused),
            unread=dict(self._unread),
            unwritten=dict(self._unwritten),
            other_faults=dict(self._other),
            breaker=self._exchanges.breaker.state.value,
            breaker_opened=self._exchanges.breaker.opened,
            usage=self.medium.usage(),
            notices=self.notices,
        )

    async def close(self) -> None:
        """Close the medium; may be called twice."""
        await self._exchanges.close()
        await self.medium.close()


def _check_keys(keys: Sequence[bytes]) -> None:
    for key in keys:
        if len(key) != ADDRESS_BYTES:
            raise ValueError(f"a key has {ADDRESS_BYTES} bytes, not {len(key)}: {bytes(key[:8]).hex()}")


def _groups(wanted: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (wanted[start : start + size] for start in range(0, len(wanted), size))
