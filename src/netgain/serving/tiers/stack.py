"""Tiers from fast to slow as one: loading asks them in order and promotes what it finds, storing queues and never waits. A tier
is written through, which is when something is stored, or back, which is when the tier above gives it up."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import takewhile
from typing import NamedTuple

import msgspec

from netgain.cost.link import LinkFit
from netgain.ledger.clock import Clock
from netgain.serving.tiers.condemned import Condemned, Purges, condemns
from netgain.serving.tiers.lane import Lane
from netgain.serving.tiers.layered import LayeredObject
from netgain.serving.tiers.medium import Data
from netgain.serving.tiers.object import Refused
from netgain.serving.tiers.tending import begin, shed
from netgain.serving.tiers.tier import Tier
from netgain.serving.tiers.tier_stats import TierStats

Move = Callable[[bytes, Data, int], Awaitable[Data | None]]
_AT_ONCE = 64  # objects that are asked about together


class StackStats(msgspec.Struct, frozen=True, kw_only=True):
    """`dropped` objects were offered while the queue of a tier was full, and are not in it. Counts are per tier, fast to
    slow; `promoted` says how many came from it and were offered to faster ones, `demoted` how many it gave up, or had at the
    end, and the next slower one was offered."""

    tiers: tuple[TierStats, ...]
    queued_bytes: tuple[int, ...]
    dropped: tuple[int, ...]
    promoted: tuple[int, ...]
    demoted: tuple[int, ...]


class Came(NamedTuple):
    """An object, the tier that gave it, and how often the stack had been purged when it was asked for."""

    data: Data
    tier: int
    purges: int = 0


class Stack:
    """Owns its tiers. Called from one event loop. Queued objects are not found before they are stored. `through` are the tiers
    that are offered what is stored or promoted; the others, `back`, get what the one above, which has to know it, gives up."""

    def __init__(
        self, tiers: Sequence[Tier], clock: Clock, queue_bytes: int = 256 << 20, back: Collection[int] = ()
    ) -> None:
        self._clock = clock
        self._lanes = [Lane(tier, queue_bytes) for tier in tiers]
        self._promoted, self._demoted = [0] * len(tiers), [0] * len(tiers)
        self._back = tuple(sorted(back))
        self.through = tuple(tier for tier in range(len(tiers)) if tier not in self._back)
        self._move_down: Move | None = None  # None: offered as it is
        self._given_up: deque[tuple[bytes, Data, int]] = deque()  # what is still to be moved down
        self._mover: asyncio.Task[None] | None = None  # lives while there is
        self._purges = Purges()
        for below in self._back:
            tiers[below - 1].on_eviction(partial(self._demote, below - 1))

    @property
    def tiers(self) -> list[Tier]:
        return [lane.tier for lane in self._lanes]

    @property
    def purges(self) -> int:
        """How often it was purged: what was read before one may not come back by promotion after it."""
        return self._purges.begun

    async def locate(self, keys: Sequence[bytes], within_s: float | None = None) -> list[int | None]:
        """The index of the fastest tier that says within that time that it has each key; slower ones are asked only for what
        faster ones lack."""
        until_s = None if within_s is None else self._clock.now() + within_s
        where: list[int | None] = [None] * len(keys)
        for index, lane in enumerate(self._lanes):
            missing = [place for place, tier in enumerate(where) if tier is None]
            left_s = None if until_s is None else until_s - self._clock.now()
            if not missing or (left_s is not None and left_s <= 0) or not lane.tier.usable:
                continue
            there = await lane.tier.contains([keys[place] for place in missing], left_s)
            for place, found in zip(missing, there, strict=True):
                if found:
                    where[place] = index
        return where

    async def locate_prefix(self, keys: Sequence[bytes], within_s: float | None = None) -> list[int]:
        """As `locate`, of keys that are of use only behind all those before them: up to the first that no tier has, behind which
        nothing is asked; up to where the answer is known when the time is up."""
        until_s = None if within_s is None else self._clock.now() + within_s
        where: list[int] = []
        for start in range(0, len(keys), _AT_ONCE):
            left_s = None if until_s is None else until_s - self._clock.now()
            there = await self.locate(keys[start : start + _AT_ONCE], left_s)
            where += [tier for tier in takewhile(lambda tier: tier is not None, there) if tier is not None]
            if None in there:
                break
        return where

    async def load(self, keys: Sequence[bytes], within_s: float | None = None) -> list[Data | None]:
        """As `find`; what a slower tier gave is offered to the faster ones, as it is."""
        found = await self.find(keys, within_s)
        for key, came in zip(keys, found, strict=True):
            if came is not None and came.purges == self.purges:
                self.promote(key, came.data, came.tier)
        return [None if came is None else came.data for came in found]

    async def find(
        self, keys: Sequence[bytes], within_s: float | None = None, *, judged: bool = False
    ) -> list[Came | None]:
        """The checked object under each key from the fastest tier that gives it, waiting at most `within_s` in all; nothing that
        a purge condemns which went on meanwhile. `judged`: the caller says of each by `judge` what it is."""
        until_s, purges = None if within_s is None else self._clock.now() + within_s, self.purges
        found: list[Came | None] = [None] * len(keys)
        with self._purges.met() as met:
            for index, lane in enumerate(self._lanes):
                missing = [place for place, came in enumerate(found) if came is None]
                left_s = None if until_s is None else until_s - self._clock.now()
                if not missing or (left_s is not None and left_s <= 0):
                    break
                given = await lane.tier.get([keys[place] for place in missing], left_s, judged=True)
                for place, data in zip(missing, given, strict=True):
                    if data is not None:
                        found[place] = Came(data, index, purges)
            useful = [None if came is None or condemns(met, came.data) else came for came in found]
            for came, kept in zip(found, useful, strict=True):
                if came is not None and (kept is None or not judged):
                    self.judge(came, None, kept is not None)
            return useful

    def judge(self, came: Came, refused: Refused | None, useful: bool = True) -> None:
        """See Tier."""
        self._lanes[came.tier].tier.judge(refused, useful)

    async def load_layers(
        self, objects: Sequence[LayeredObject], end: int, within_s: float | None = None
    ) -> list[Data | None]:
        """As `load`, of each object the layers from where it was read before up to the one before `end`, from the tier that
        gave its first ones. What came whole from a slower tier is offered to the faster ones."""
        until_s = None if within_s is None else self._clock.now() + within_s
        found: list[Data | None] = [None] * len(objects)
        for one in objects:
            one.purges = self.purges if one.purges is None else one.purges
        with self._purges.met() as met:
            for index, lane in enumerate(self._lanes):
                asked = [
                    place
                    for place, one in enumerate(objects)
                    if one.tier == index or (one.tier is None and found[place] is None)
                ]
                left_s = None if until_s is None else until_s - self._clock.now()
                if not asked or (left_s is not None and left_s <= 0):
                    continue
                came = await lane.tier.get_layers([objects[place] for place in asked], end, left_s)
                for place, data in zip(asked, came, strict=True):
                    one = objects[place]
                    if data is None:
                        continue
                    one.tier = index
                    if not self.faster(index):
                        one.passes()
                    if condemns(met, one.header):
                        continue
                    found[place] = data
                    if one.purges == self.purges and (whole := one.whole()) is not None:
                        self.promote(one.address, whole, index)
        return found

    def promote(self, key: bytes, data: Data, source: int, into: Iterable[int] | None = None) -> None:
        """Offer what the tier `source` gave to faster ones: to all of them, or to those named."""
        self._promoted[source] += source > 0
        for faster in self.faster(source) if into is None else into:
            self._lanes[faster].offer(key, data)

    def faster(self, than: int | None) -> tuple[int, ...]:
        """The tiers that are offered what is found in the tier `than`, or is new (None)."""
        return self.through if than is None else tuple(tier for tier in self.through if tier < than)

    def move_down_by(self, move: Move) -> None:
        """Have `move(address, data, tier)` say in which form the next tier is offered what that tier gave up (None: it is not),
        instead of its being offered as it is. It is called for one at a time, and may take its time: what waits for it counts as
        queued for the next tier, and has no more room than that."""
        self._move_down = move

    async def begin(self) -> None:
        """Start what tiers do in the background, and hand down what was over their capacity at the start; returns when that is
        done."""
        await asyncio.gather(*(begin(lane.tier) for lane in self._lanes))
        for below in self._back:
            while await shed(self._lanes[below - 1].tier, self._lanes[below]):
                await self._moved()

    async def hand_down(self) -> None:
        """Before the end: offer what would end with this process to the tier below, where that is written back, what was used
        last first."""
        for below in self._back:
            upper, lane = self._lanes[below - 1], self._lanes[below]
            if upper.tier.outlives:
                continue
            await upper.settle()
            keys = (await upper.tier.keys() or [])[::-1]
            for start in range(0, len(keys), _AT_ONCE):
                group = keys[start : start + _AT_ONCE]
                there = await lane.tier.contains(group)
                missing = [key for key, has in zip(group, there, strict=True) if not has]
                for key, data in zip(missing, await upper.tier.peek(missing) or [], strict=False):
                    if data is None:
                        continue
                    if not lane.has_room(data):
                        await lane.settle()
                    self._demote(below - 1, key, data)
                    await self._moved()
            await lane.settle()

    def _demote(self, source: int, key: bytes, data: Data) -> None:
        if self._purges.condemn(data):
            return
        self._demoted[source] += 1
        if self._move_down is None:
            self._lanes[source + 1].offer(key, data)
            return
        below = self._lanes[source + 1]
        if not below.has_room(data):
            below.dropped += 1
            return
        below.coming += len(data)
        self._given_up.append((key, data, source))
        if self._mover is None or self._mover.done():
            self._mover = asyncio.get_running_loop().create_task(self._move(self._move_down))

    async def _move(self, move: Move) -> None:
        """One after the other. What was on its way when a purge began is dropped: it could be what that is about."""
        while self._given_up:
            key, data, source = self._given_up.popleft()
            below, purges = self._lanes[source + 1], self.purges
            try:
                moved = await move(key, data, source)
            finally:
                below.coming -= len(data)
            if moved is not None and purges == self.purges:
                below.offer(key, moved)

    async def _moved(self) -> None:
        """Return when what was given up is queued."""
        if self._mover is not None and not self._mover.done():
            await asyncio.wait({self._mover})

    def links(self) -> list[LinkFit | None]:
        """What loading from each tier costs, by its last exchanges."""
        return [lane.tier.load_link for lane in self._lanes]

    def code_links(self) -> list[LinkFit | None]:
        """By what it is decided how objects are coded for each tier (see Tier.code_link)."""
        return [lane.tier.code_link for lane in self._lanes]

    def offer(
        self,
        key: bytes,
        data: Data,
        into: Iterable[int] | None = None,
        told: Callable[[int, str | None], None] | None = None,
    ) -> tuple[int, ...]:
        """Queue a packed object for every tier that is written through, or for those named, and return at once; the tiers whose
        queues had room. `told` is called for each of those, once it is stored there (None) or is not going to be (why)."""
        return tuple(
            tier
            for tier in (self.through if into is None else into)
            if self._lanes[tier].offer(key, data, None if told is None else partial(told, tier))
        )

    async def settle(self) -> None:
        """Return when everything that was queued is stored, or could not be."""
        for lane in self._lanes:
            await lane.settle()
            await self._moved()

    async def pin(self, keys: Sequence[bytes], for_s: float, owner: str | None = None) -> None:
        """Keep keys of this tenant from eviction for so long, in every tier that evicts, also such as are still queued."""
        for lane in self._lanes:
            await lane.tier.pin(keys, for_s, owner)

    @asynccontextmanager
    async def purging(self, condemned: Condemned) -> AsyncIterator[int]:
        """Until it is left, nothing condemned is given to anybody, promoted or moved down. Takes it out of every queue first, and
        gives how many that were; what was being stored then is stored."""

        def is_condemned(key: bytes, data: Data) -> bool:
            return condemns((condemned,), data)

        with self._purges.one(condemned):
            given_up, self._given_up = self._given_up, deque()
            for one in given_up:
                if is_condemned(*one[:2]):
                    self._lanes[one[2] + 1].coming -= len(one[1])
                else:
                    self._given_up.append(one)
            yield sum([await lane.forget(is_condemned) for lane in self._lanes])

    async def delete(self, keys: Sequence[bytes]) -> bool:
        """Forget keys in every tier, and what is queued of them; False when a tier could not say that it did."""
        gone = frozenset(keys)
        for lane in self._lanes:
            await lane.forget(lambda key, data: key in gone)
        return None not in [await lane.tier.delete(keys) for lane in self._lanes]

    def stats(self) -> StackStats:
        return StackStats(
            tiers=tuple(lane.tier.stats() for lane in self._lanes),
            queued_bytes=tuple(lane.bytes + lane.coming for lane in self._lanes),
            dropped=tuple(lane.dropped for lane in self._lanes),
            promoted=tuple(self._promoted),
            demoted=tuple(self._demoted),
        )

    async def close(self) -> None:
        """Drop what is still queued and close the tiers; may be called twice."""
        self._given_up.clear()
        if self._mover is not None and not self._mover.done():
            self._mover.cancel()
            await asyncio.wait({self._mover})
        for lane in self._lanes:
            await lane.close()
