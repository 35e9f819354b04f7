"""KV blocks in and out of tiers: the one place where a block's bytes become stored objects, and where they come back."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec

from netgain.cost.link import LinkFit
from netgain.ledger.clock import Clock
from netgain.serving.blocks.scope import Tenants
from netgain.serving.tiers.admission import Admission
from netgain.serving.tiers.codecs.coder import Coder, CoderStats
from netgain.serving.tiers.envelope import Envelope, PlainEnvelope
from netgain.serving.tiers.layered_blocks import LayeredBlocks
from netgain.serving.tiers.medium import NO_ROOM, NOBODYS, Data
from netgain.serving.tiers.object import RAW, Part, Refused, StoredObject, opened, pack, unpack
from netgain.serving.tiers.opened import Opened, blocks_of, chunks, dates_of
from netgain.serving.tiers.planes import Plane, Rows, object_bytes, part_of, stored_of
from netgain.serving.tiers.purging import StorePurged, purge
from netgain.serving.tiers.stack import Came, Stack, StackStats


class Located(msgspec.Struct, frozen=True):
    """`places[i]` is the tier that all planes of the i-th block can be had from (the slowest of theirs), None where one is
    missing; `links` what loading from each tier costs now. Finding out took `seconds`."""

    places: tuple[int | None, ...]
    links: tuple[LinkFit | None, ...]
    seconds: float


class Loaded(msgspec.Struct, frozen=True):
    """The bytes of each block, one view per plane; None where something is missing. `bytes` of KV came in `seconds`, as
    `moved_bytes` in the forms `codecs`; of the time `decode_s` was spent on making KV of them again. `dates`: when each block
    was first computed, 0 where that is not known."""

    blocks: tuple[tuple[memoryview, ...] | None, ...]
    bytes: int
    seconds: float
    links: tuple[LinkFit | None, ...]
    moved_bytes: int = 0
    codecs: frozenset[str] = frozenset()
    decode_s: float = 0.0
    dates: tuple[int, ...] = ()


class Whole(NamedTuple):
    """The bytes of an object, and when it was first computed, 0 where that is not known."""

    payload: memoryview
    dated: int


P = ParamSpec("P")
T = TypeVar("T")


class KVStore:
    """Blocks are addressed by their keys; `root` is the root of a request's chain of keys, which differs by tenant. All planes
    of a block are stored, and it is loaded only with all of them. Called from the event loop of its stack, which it owns."""

    def __init__(
        self,
        stack: Stack,
        planes: Sequence[Plane],
        clock: Clock,
        envelope: Envelope | None = None,
        coder: Coder | None = None,
        admissions: Sequence[Admission | None] = (),
    ) -> None:
        """`envelope` wraps every object that leaves (by default in the clear), after `coder` has coded it for its tier (by
        default not at all). `admissions` are the rules of the tiers, for who decides what is stored: the store asks none."""
        self.planes, self.coder = tuple(planes), coder
        self.envelope = envelope or PlainEnvelope()
        self._stack, self._clock = stack, clock
        self._refused: list[bytes] = []
        self._later: set[asyncio.Task[None]] = set()
        self.admissions = tuple(admissions) or (None,) * len(stack.tiers)
        self.through = stack.through
        self._recoder: ThreadPoolExecutor | None = None  # once there is something for it
        if coder is not None:
            stack.move_down_by(self._demote)

    @property
    def block_bytes(self) -> int:
        return sum(plane.block_bytes for plane in self.planes)

    @cached_property
    def object_bytes(self) -> int:
        """What a block takes in tiers, headers included."""
        return sum(object_bytes(self.planes))

    @property
    def tiers(self) -> tuple[str, ...]:
        """Their names, fast to slow."""
        return tuple(tier.name for tier in self._stack.tiers)

    def put(
        self,
        root: bytes,
        keys: Sequence[bytes],
        planes: Sequence[Rows],
        into: Sequence[Sequence[int]],
        dates: Sequence[int],
        told: Callable[[bytes, int, str | None], None] = lambda key, tier, why: None,
    ) -> None:
        """Queue whole blocks: planes[p] is uint8 [len(keys), bytes of plane p]; `into[i]` are the tiers for the i-th, `dates[i]`
        is when it was first computed, in whole Unix seconds. `told` is called for each plane of a block and each of its tiers,
        now or later: that it is stored there (None), or is not going to be (why): there was no room in the queue, it may not
        leave, or the tier did not keep it."""
        for plane, rows in zip(self.planes, planes, strict=True):
            for key, row, tiers, dated in zip(keys, rows, into, dates, strict=True):
                self._offer(stored_of(root, key, plane, row, dated), tiers, partial(told, key))

    def put_one(self, stored: StoredObject, there: int | None = None) -> None:
        """Queue a raw object that is no block, where a tier has it already only for faster ones."""
        self._offer(stored, self.through if there is None else self._stack.faster(there))

    async def locate(self, keys: Sequence[bytes], within_s: float | None = None) -> Located:
        """Where each block is up to the first that is missing, as far as the tiers say within that time."""
        started_s = self._clock.now()
        places = [0] * len(keys)
        for plane in self.planes:
            left_s = None if within_s is None else within_s - (self._clock.now() - started_s)
            addresses = [part_of(key, plane).address() for key in keys[: len(places)]]
            there = await self._stack.locate_prefix(addresses, left_s)
            places = list(map(max, places, there))
        return Located((*places, *[None] * (len(keys) - len(places))), self._links(), self._clock.now() - started_s)

    async def locate_ones(self, parts: Sequence[Part]) -> Located:
        """Where objects are that are no blocks."""
        started_s = self._clock.now()
        places = await self._stack.locate([part.address() for part in parts])
        return Located(tuple(places), self._links(), self._clock.now() - started_s)

    async def load(self, root: bytes, keys: Sequence[bytes], within_s: float | None = None) -> Loaded:
        """The blocks under `keys`, waiting at most `within_s` in all."""
        started_s = self._clock.now()
        parts = await self._open(self.planes, root, keys, within_s)
        useful = [part for part in parts if part is not None]
        return Loaded(
            blocks_of(parts, len(keys)),
            sum(len(part.raw.payload) for part in useful),
            self._clock.now() - started_s,
            self._links(),
            sum(len(part.came.data) for part in useful),
            frozenset(part.codec for part in useful),
            sum(part.decode_s for part in useful),
            dates_of(parts, len(keys)),
        )

    async def load_planes(
        self, planes: Sequence[Plane], root: bytes, keys: Sequence[bytes], within_s: float | None
    ) -> tuple[tuple[tuple[memoryview, ...] | None, ...], int, tuple[int, ...]]:
        """Some planes of the blocks, None where one is missing, how many bytes that are, and when they were first computed."""
        parts = await self._open(planes, root, keys, within_s)
        size = sum(len(part.raw.payload) for part in parts if part is not None)
        return blocks_of(parts, len(keys)), size, dates_of(parts, len(keys))

    async def _open(
        self, planes: Sequence[Plane], root: bytes, keys: Sequence[bytes], within_s: float | None
    ) -> list[Opened | None]:
        """What came of these planes, plane after plane."""
        addresses = [part_of(key, plane).address() for plane in planes for key in keys]
        found = await self._stack.find(addresses, within_s, judged=True)
        parts = [
            None if came is None else self._opened(root, plane.shape.block_tokens, came)
            for plane, of_plane in zip(planes, chunks(found, len(keys)), strict=True)
            for came in of_plane
        ]
        self._afterwards([part for part in parts if part is not None])
        return parts

    @property
    def only_whole(self) -> bool:
        """Whether coding or the envelope keeps blocks from being read by layers."""
        return self.envelope.only_whole or (self.coder is not None and self.coder.codes)

    def by_layers(self, root: bytes, keys: Sequence[bytes], starts: Sequence[int]) -> LayeredBlocks:
        """The blocks under `keys`, to be read group of layers by group of layers; `starts` are their first layers."""
        first, *others = self.planes
        whole = partial(self.load_planes, others, root, keys) if others else None
        return LayeredBlocks(self._stack, self._clock, root, keys, first, starts, whole)

    async def load_ones(
        self, root: bytes, wanted: Sequence[tuple[Part, int]], within_s: float | None = None
    ) -> list[Whole | None]:
        """Objects that are no blocks, each with so many tokens; None for what does not come in time."""
        found = await self._stack.find([part.address() for part, _ in wanted], within_s, judged=True)
        parts = [
            None if came is None else self._opened(root, tokens, came)
            for (_, tokens), came in zip(wanted, found, strict=True)
        ]
        self._afterwards([part for part in parts if part is not None])
        return [
            None if part is None else Whole(memoryview(part.raw.payload), part.raw.written_s or 0) for part in parts
        ]

    def _opened(self, root: bytes, tokens: int, came: Came) -> Opened | None:
        """KV out of what a tier gave and has checked: whatever is done to KV before it is used is done here. None where it is of
        no use."""
        found = opened(came.data)
        if found.root != root or found.tokens != tokens:
            self._stack.judge(came, None, useful=False)
            return None
        try:
            unwrapped = self.envelope.unwrap(found)
            began_s = self._clock.now()
            raw = unwrapped if self.coder is None else self.coder.decode(unwrapped, came.tier)
        except Refused as why:
            self._stack.judge(came, why)
            self._refused.append(found.part.address())
            return None
        self._stack.judge(came, None)
        if self.coder is None:
            return Opened(came, unwrapped, raw, RAW, 0.0)
        return Opened(came, unwrapped, raw, self.coder.name_of(found.codec), self._clock.now() - began_s)

    def _afterwards(self, opened_ones: Sequence[Opened]) -> None:
        """Promote what slower tiers gave, and remove what was refused: once whoever asked has it, since coding takes time and
        removing waits for what is being stored."""
        refused, self._refused = self._refused, []
        slower = [one for one in opened_ones if one.came.tier > 0]
        if not refused and not slower:
            return

        async def work() -> None:
            for one in slower:
                self._promote(one)
                await asyncio.sleep(0)
            if refused:
                await self._stack.delete(refused)

        task = asyncio.get_running_loop().create_task(work())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def _promote(self, one: Opened) -> None:
        """To every faster tier that is written through, in the form that is right for it, dated as it was; what was asked for
        before a purge stays where it is, if it still is."""
        if one.came.purges != self._stack.purges:
            return
        faster, address = self._stack.faster(one.came.tier), one.raw.part.address()
        if self.coder is None:
            self._stack.promote(address, one.came.data, one.came.tier)
            return
        links = self._stack.code_links()
        for form, tiers in self.coder.forms(one.raw, {tier: links[tier] for tier in faster}, have=one.found):
            if form.codec == one.found.codec:
                self._stack.promote(address, one.came.data, one.came.tier, tiers)
            elif (wrapped := self.envelope.wrap(form)) is not None:
                self._stack.promote(address, pack(wrapped), one.came.tier, tiers)

    async def _demote(self, address: bytes, data: Data, source: int) -> Data | None:
        """What a tier gave up in the form that is right for the next one, worked out on a thread of its own, so that lookups and
        loads go on meanwhile; as it is where it cannot be opened here now, such as when nobody asked for its root lately; None
        where it is of no use."""
        assert self.coder is not None
        try:
            found = await self._elsewhere(unpack, data, address)
        except Refused:
            return None
        try:
            found = await self._elsewhere(self.envelope.unwrap, found)
            recoding = self.coder.recoding(found, source, source + 1, self._stack.code_links()[source + 1])
            await self._elsewhere(recoding.decode)
        except Refused:
            return data
        if recoding.choose():
            await self._elsewhere(recoding.encode)
        form = recoding.form()
        wrapped = None if form.codec == found.codec else await self._elsewhere(self.envelope.wrap, form)
        return data if wrapped is None else pack(wrapped)

    async def _elsewhere(self, work: Callable[P, T], *of: P.args, **named: P.kwargs) -> T:
        """What this gives on the one thread for it, one after the other."""
        self._recoder = self._recoder or ThreadPoolExecutor(1, "kv-recoding")
        return await asyncio.get_running_loop().run_in_executor(self._recoder, partial(work, *of, **named))

    def _offer(
        self, stored: StoredObject, tiers: Sequence[int], told: Callable[[int, str | None], None] | None = None
    ) -> None:
        """Queue a raw object for these tiers, for each in the form that is right for it; see `put`."""
        links = self._stack.code_links()
        wanted = {tier: links[tier] for tier in tiers}
        forms = [(stored, list(tiers))] if self.coder is None else self.coder.forms(stored, wanted)
        for form, takers in forms:
            taken, why = tuple[int, ...](), NOBODYS
            if (wrapped := self.envelope.wrap(form)) is not None:
                taken, why = self._stack.offer(wrapped.part.address(), pack(wrapped), takers, told), NO_ROOM
            for tier in takers:
                if told is not None and tier not in taken:
                    told(tier, why)

    async def pin(self, keys: Sequence[bytes], for_s: float, owner: str | None = None) -> None:
        """Keep this tenant's blocks from eviction for so long, where a tier evicts; a job, so it does not raise."""
        await self._stack.pin([part_of(key, plane).address() for plane in self.planes for key in keys], for_s, owner)

    def _links(self) -> tuple[LinkFit | None, ...]:
        """In bytes of raw objects, whatever passes."""
        links = enumerate(self._stack.links())
        return tuple(link if self.coder is None else self.coder.in_raw_bytes(tier, link) for tier, link in links)

    def stats(self) -> StackStats:
        return self._stack.stats()

    def coder_stats(self) -> tuple[CoderStats, ...]:
        """By tier; none where nothing is ever coded or decoded."""
        return () if self.coder is None else self.coder.stats()

    async def settle(self) -> None:
        """Return when everything that was put or promoted is stored, or could not be."""
        while self._later:
            await asyncio.wait(set(self._later))
        await self._stack.settle()

    async def purge(self, tenants: Tenants) -> StorePurged:
        """Forget what is these tenants', here and in every tier."""
        return await purge(self._stack, self.envelope, tenants)

    async def begin(self) -> None:
        """See Stack; a job, so it does not raise."""
        await self._stack.begin()

    async def hand_down(self) -> None:
        """See Stack: before the end."""
        await self._stack.hand_down()

    async def close(self) -> None:
        """May be called twice."""
        for task in self._later:
            task.cancel()
        await self._stack.close()
        if self._recoder is not None:
            self._recoder.shutdown(wait=False, cancel_futures=True)
            self._recoder = None
