"""A tier: a medium that can be relied on. Every wait is bounded, every object is checked, every outcome is counted, and
nothing that goes wrong with the medium is an exception to who asks: it is a miss, or an object that was not kept."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from netgain.cost.link import LinkFit
from netgain.ledger.clock import Clock
from netgain.serving.tiers.breaker import Breaker
from netgain.serving.tiers.layered import LayeredObject
from netgain.serving.tiers.medium import Data, Fault, FaultKind, GivenUp, Medium
from netgain.serving.tiers.object import ADDRESS_BYTES, Expected, Reason, Refused, StoredObject, check_age, unpack
from netgain.serving.tiers.tier_stats import Direction, TierStats

T = TypeVar("T")
W = TypeVar("W")
_log = logging.getLogger(__name__)


class TierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`timeout_s` bounds one exchange of at most `group` objects, so that a slow medium gets through and a hung one costs
    one such wait. `pause_s`: how long nothing is written after the medium was full or read-only.
    `retention_s`: what was written longer ago is never used, and is removed when it is met (and by sweeps, see inventory.py);
    None: no age is too old."""

    timeout_s: float = 2.0
    group: int = 16
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
        self._medium = medium
        self._clock = clock
        self._options = options or TierOptions()
        self._expected = expected
        self._unix_s = unix_s
        self._breaker = Breaker(self._options.failures, self._options.open_s, self._options.longest_open_s)
        self._probe: asyncio.Task[None] | None = None
        self._paused_until_s = 0.0
        self._said: set[str] = set()
        self._hits = self._misses = 0
        self._loaded, self._stored = Direction(), Direction()
        self._refused: Counter[Reason] = Counter()
        self._unread: Counter[FaultKind] = Counter()
        self._unwritten: Counter[FaultKind] = Counter()
        self._other: Counter[FaultKind] = Counter()

    async def get(self, keys: Sequence[bytes], within_s: float | None = None) -> list[Data | None]:
        """The checked object under each key, None where there is none to use. At most `within_s` is waited in all; what came
        by then is returned."""
        _check_keys(keys)

        def whole(key: bytes, data: Data) -> Data:
            self._check_age(unpack(data, key, self._expected))
            return data

        found = await self._get(keys, within_s, self._medium.read, whole, lambda key: key)
        self._count(found)
        return found

    async def get_layers(
        self, objects: Sequence[LayeredObject], end: int, within_s: float | None = None
    ) -> list[Data | None]:
        """As `get`, of each object the layers from where it was read before up to the one before `end`."""
        began = [one.begun for one in objects]

        def layers(one: LayeredObject, data: Data) -> memoryview | None:
            return one.take(end, data, self._expected, self._check_age)

        async def read(group: Sequence[LayeredObject]) -> list[Data | None]:
            return await self._medium.ranges([one.wanted(end) for one in group])

        found = await self._get(objects, within_s, read, layers, lambda one: one.address)
        self._count([data for data, before in zip(found, began, strict=True) if not before])
        return found

    async def _get(
        self,
        wanted: Sequence[W],
        within_s: float | None,
        read: Callable[[Sequence[W]], Awaitable[list[Data | None]]],
        use: Callable[[W, Data], Data | None],
        key_of: Callable[[W], bytes],
    ) -> list[Data | None]:
        """What `use`, which raises Refused, makes of what `read` gives, group by group."""
        until_s = None if within_s is None else self._clock.now() + within_s
        found: list[Data | None] = []
        for group in _groups(wanted, self._options.group):
            started_s = self._clock.now()
            try:
                came = await self._bounded(read(group), until_s)
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
                    self._refused[why.reason] += 1
                    self._say(why.reason, f"holds an object that is refused ({why}); it is removed and counted")
                    found.append(None)
                    refused.append(key_of(one))
            if refused:
                await self.delete(refused)
        return found

    def _check_age(self, found: StoredObject) -> None:
        check_age(found, self._options.retention_s, self._unix_s())

    def _count(self, found: Sequence[object]) -> None:
        hits = sum(data is not None for data in found)
        self._hits += hits
        self._misses += len(found) - hits

    async def put(self, key: bytes, data: Data) -> bool:
        """Keep a packed object; whether it is kept now, as far as one can know."""
        _check_keys([key])
        try:
            if self._clock.now() < self._paused_until_s:
                raise Fault(FaultKind.PAUSED, "not written: the medium was full or read-only lately")
            started_s = self._clock.now()
            await self._bounded(self._medium.write(key, data), None)
        except Fault as fault:
            self._unwritten[fault.kind] += 1
            if fault.kind in (FaultKind.FULL, FaultKind.READ_ONLY):
                self._paused_until_s = self._clock.now() + self._options.pause_s
                self._say(fault.kind, f"is {fault.kind.replace('_', '-')}, objects are read but none are kept: {fault}")
            return False
        self._stored.add(1, len(data), self._clock.now() - started_s)
        return True

    async def heads(self, keys: Sequence[bytes]) -> list[Data | None] | None:
        """The first HEAD_BYTES under each key, unchecked; None when the medium did not say."""
        _check_keys(keys)
        found: list[Data | None] = []
        try:
            for group in _groups(keys, self._options.group):
                found += await self._bounded(self._medium.heads(group), None)
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
                found += await self._bounded(self._medium.read(group), None)
        except Fault as fault:
            self._other[fault.kind] += 1
            return None
        return found

    async def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether each key is there: a hint, since it may be evicted, or be refused, before it is read."""
        _check_keys(keys)
        try:
            return await self._bounded(self._medium.has(keys), None)
        except Fault as fault:
            self._other[fault.kind] += 1
            return [False] * len(keys)

    async def pin(self, keys: Sequence[bytes], for_s: float) -> int:
        """Keep keys from eviction for so long (see Medium.pin); how many are so kept now."""
        _check_keys(keys)
        try:
            return await self._bounded(self._medium.pin(keys, for_s), None)
        except Fault as fault:
            self._other[fault.kind] += 1
            return 0

    async def delete(self, keys: Sequence[bytes]) -> int | None:
        """Forget keys; how many were there, None when that failed (they may be there still)."""
        _check_keys(keys)
        removed = 0
        try:
            for group in _groups(keys, self._options.group):
                removed += await self._bounded(self._medium.remove(group), None)
        except Fault as fault:
            self._other[fault.kind] += 1
            return None
        return removed

    async def keys(self) -> list[bytes] | None:
        """All keys; None when the medium did not say."""
        try:
            return await self._bounded(self._medium.keys(), None)
        except Fault as fault:
            self._other[fault.kind] += 1
            return None

    def on_eviction(self, given_up: GivenUp) -> bool:
        """See Medium."""
        return self._medium.on_eviction(given_up)

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
        self._start_probe()
        return self._breaker.allows()

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
            breaker=self._breaker.state.value,
            breaker_opened=self._breaker.opened,
            usage=self._medium.usage(),
        )

    async def close(self) -> None:
        """Close the medium; may be called twice."""
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.wait({self._probe})
            self._probe = None
        await self._medium.close()

    async def _bounded(self, call: "Awaitable[T]", until_s: float | None) -> T:
        """The call's result, or Fault when the breaker is open, the call failed or the time is up."""
        self._start_probe()
        if not self._breaker.allows():
            _drop(call)
            raise Fault(FaultKind.BREAKER, "not tried: the medium failed lately")
        limit_s, kind = self._options.timeout_s, FaultKind.TIMEOUT
        if until_s is not None and until_s - self._clock.now() < limit_s:
            limit_s, kind = until_s - self._clock.now(), FaultKind.ABANDONED
        try:
            result = await self._within(call, limit_s, kind)
        except Fault as fault:
            if fault.kind in (FaultKind.TIMEOUT, FaultKind.UNREACHABLE, FaultKind.ERROR):
                self._breaker.failed(self._clock.now())
                self._say(fault.kind, f"failed and is left alone until a probe finds it well: {fault}")
            raise
        self._breaker.succeeded()
        return result

    async def _within(self, call: "Awaitable[T]", limit_s: float, kind: FaultKind) -> T:
        task = asyncio.ensure_future(call)
        alarm = asyncio.ensure_future(self._clock.sleep(limit_s))
        try:
            await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Fault(kind, f"no answer within {limit_s:.3g} s")
            return task.result()
        except (Fault, asyncio.CancelledError):
            raise
        except Exception as error:
            _log.exception("tier %s: its medium raised what it may not", self.name)
            raise Fault(FaultKind.ERROR, f"{type(error).__name__}: {error}") from error
        finally:
            alarm.cancel()
            if not task.done():
                task.cancel()
                task.add_done_callback(_forget)

    def _start_probe(self) -> None:
        if self._breaker.take_probe(self._clock.now()):
            self._probe = asyncio.ensure_future(self._ping())

    async def _ping(self) -> None:
        try:
            await self._within(self._medium.ping(), self._options.timeout_s, FaultKind.TIMEOUT)
        except Fault:
            self._breaker.probed(False, self._clock.now())
        else:
            self._breaker.probed(True, self._clock.now())
            _log.warning("tier %s answers again and is used", self.name)
            self._said -= {FaultKind.TIMEOUT, FaultKind.UNREACHABLE, FaultKind.ERROR}

    def _say(self, about: str, message: str) -> None:
        """Log once: what repeats is in the counters."""
        if about not in self._said:
            self._said.add(about)
            _log.warning("tier %s %s", self.name, message)


def _check_keys(keys: Sequence[bytes]) -> None:
    for key in keys:
        if len(key) != ADDRESS_BYTES:
            raise ValueError(f"a key has {ADDRESS_BYTES} bytes, not {len(key)}: {bytes(key[:8]).hex()}")


def _groups(wanted: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (wanted[start : start + size] for start in range(0, len(wanted), size))


def _drop(call: "Awaitable[T]") -> None:
    """Never start a coroutine that was made."""
    if asyncio.iscoroutine(call):
        call.close()


def _forget(task: "asyncio.Future[T]") -> None:
    """Take the outcome of a call that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
