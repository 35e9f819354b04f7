"""KV blocks in and out of tiers: the one place where a block's bytes become stored objects, and where they come back."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from netgain.cost.link import LinkFit
from netgain.ledger.clock import Clock
from netgain.serving.tiers.codecs.coder import Coder, CoderStats
from netgain.serving.tiers.envelope import Envelope, PlainEnvelope
from netgain.serving.tiers.layered import LayeredObject, LayersLoaded
from netgain.serving.tiers.medium import Data
from netgain.serving.tiers.object import RAW, Expected, Part, Reason, Refused, Shape, StoredObject, opened, pack
from netgain.serving.tiers.stack import Stack, StackStats

Rows = npt.NDArray[np.uint8]


class Plane(msgspec.Struct, frozen=True):
    """One kind of bytes that every block has: `name` says of what (see Part.plane), `shape` how they lie."""

    name: str
    layers: int
    shape: Shape

    @property
    def block_bytes(self) -> int:
        return self.layers * self.shape.token_bytes * self.shape.block_tokens


class Located(msgspec.Struct, frozen=True):
    """`places[i]` is the tier that all planes of the i-th block can be had from (the slowest of theirs), None where one is
    missing; `links` what loading from each tier costs now. Finding out took `seconds`."""

    places: tuple[int | None, ...]
    links: tuple[LinkFit | None, ...]
    seconds: float


class Loaded(msgspec.Struct, frozen=True):
    """The bytes of each block, one view per plane; None where something is missing. `bytes` came in `seconds`."""

    blocks: tuple[tuple[memoryview, ...] | None, ...]
    bytes: int
    seconds: float
    links: tuple[LinkFit | None, ...]


def expected(planes: Sequence[Plane], coder: Coder | None = None) -> Expected:
    """What the tiers of a store with these planes should let through."""
    first, *others = planes
    codecs = frozenset({RAW}) if coder is None else coder.ids
    return Expected(shape=first.shape, codecs=codecs, others={plane.name: plane.shape for plane in others})


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
    ) -> None:
        """`envelope` wraps every object that leaves (by default in the clear), after `coder` has coded it (by default not at
        all)."""
        self.planes = tuple(planes)
        self.coder = coder
        self.envelope = envelope or PlainEnvelope()
        self.unwrapped: Counter[Reason] = Counter()  # objects that came and were refused by the envelope
        self._stack = stack
        self._clock = clock
        self._refused: list[bytes] = []

    @property
    def block_bytes(self) -> int:
        return sum(plane.block_bytes for plane in self.planes)

    @cached_property
    def object_bytes(self) -> int:
        """What a block takes in tiers, headers included."""
        nothing = bytes(32)
        return sum(
            len(pack(_stored(nothing, nothing, plane, np.zeros(plane.block_bytes, np.uint8)))) for plane in self.planes
        )

    @property
    def tiers(self) -> tuple[str, ...]:
        """Their names, fast to slow."""
        return tuple(tier.name for tier in self._stack.tiers)

    def put(
        self, root: bytes, keys: Sequence[bytes], planes: Sequence[Rows], faster_than: Sequence[int | None]
    ) -> None:
        """Queue whole blocks: planes[p] is uint8 [len(keys), bytes of plane p]; `faster_than[i]` is the tier that has the i-th
        already."""
        links = self._stack.links()
        for plane, rows in zip(self.planes, planes, strict=True):
            for key, row, tier in zip(keys, rows, faster_than, strict=True):
                stored = _stored(root, key, plane, row)
                wrapped = self.envelope.wrap(stored if self.coder is None else self.coder.encode(stored, links))
                if wrapped is not None:
                    self._stack.offer(wrapped.part.address(), pack(wrapped), faster_than=tier)

    async def locate(self, keys: Sequence[bytes]) -> Located:
        """Where each block is, as far as the tiers say."""
        started_s = self._clock.now()
        places: list[int | None] = [0] * len(keys)
        for plane in self.planes:
            there = await self._stack.locate([_part(key, plane).address() for key in keys])
            places = [None if a is None or b is None else max(a, b) for a, b in zip(places, there, strict=True)]
        return Located(tuple(places), self._links(), self._clock.now() - started_s)

    async def load(self, root: bytes, keys: Sequence[bytes], within_s: float | None = None) -> Loaded:
        """The blocks under `keys`, waiting at most `within_s` in all."""
        started_s = self._clock.now()
        blocks, size = await self.load_planes(self.planes, root, keys, within_s)
        return Loaded(blocks, size, self._clock.now() - started_s, self._links())

    async def load_planes(
        self, planes: Sequence[Plane], root: bytes, keys: Sequence[bytes], within_s: float | None
    ) -> tuple[tuple[tuple[memoryview, ...] | None, ...], int]:
        """Some planes of the blocks, None where one is missing, and how many bytes that are."""
        addresses = [_part(key, plane).address() for plane in planes for key in keys]
        found = await self._stack.load(addresses, within_s)
        parts = [
            None if data is None else self._opened(root, plane, data)
            for plane, of_plane in zip(planes, _chunks(found, len(keys)), strict=True)
            for data in of_plane
        ]
        if self._refused:
            refused, self._refused = self._refused, []
            await self._stack.delete(refused)
        blocks = tuple(_whole(block) for block in zip(*_chunks(parts, len(keys)), strict=True))
        return blocks, sum(len(part) for part in parts if part is not None)

    @property
    def only_whole(self) -> bool:
        """Whether coding or the envelope keeps blocks from being read by layers."""
        return self.envelope.only_whole or (self.coder is not None and self.coder.codes)

    def by_layers(self, root: bytes, keys: Sequence[bytes], starts: Sequence[int]) -> "LayeredBlocks":
        """The blocks under `keys`, to be read group of layers by group of layers; `starts` are their first layers."""
        return LayeredBlocks(self, self._stack, self._clock, root, keys, starts)

    def _opened(self, root: bytes, plane: Plane, data: Data) -> memoryview | None:
        """The bytes of a plane out of what a tier gave and has checked: whatever is done to KV before it is used is done here.
        None where it is of no use."""
        found = opened(data)
        if found.root != root or found.tokens != plane.shape.block_tokens:
            return None
        try:
            opened_one = self.envelope.unwrap(found)
            return memoryview((opened_one if self.coder is None else self.coder.decode(opened_one)).payload)
        except Refused as why:
            self.unwrapped[why.reason] += 1
            self._refused.append(found.part.address())
            return None

    async def pin(self, keys: Sequence[bytes], for_s: float) -> None:
        """Keep blocks from eviction for so long, where a tier evicts; a job, so it does not raise."""
        await self._stack.pin([_part(key, plane).address() for plane in self.planes for key in keys], for_s)

    def _links(self) -> tuple[LinkFit | None, ...]:
        """In bytes of raw objects, whatever passes."""
        links = self._stack.links()
        if self.coder is not None:
            links = [self.coder.in_raw_bytes(link) for link in links]
        return tuple(links)

    def stats(self) -> StackStats:
        return self._stack.stats()

    def coder_stats(self) -> CoderStats | None:
        """None where nothing is ever coded or decoded."""
        return None if self.coder is None else self.coder.stats()

    async def settle(self) -> None:
        """Return when everything that was put is stored, or could not be."""
        await self._stack.settle()

    async def close(self) -> None:
        await self._stack.close()


class LayeredBlocks:
    """Some blocks on their way. The first plane comes by layers, the others whole with its last group."""

    def __init__(
        self, store: KVStore, stack: Stack, clock: Clock, root: bytes, keys: Sequence[bytes], starts: Sequence[int]
    ) -> None:
        plane, *others = store.planes
        self._store, self._stack, self._clock = store, stack, clock
        self._root, self._keys, self._others = root, keys, others
        self._ends = (*starts[1:], plane.layers)
        layer_bytes = plane.block_bytes // plane.layers
        self._objects = [LayeredObject(_part(key, plane).address(), layer_bytes) for key in keys]

    async def load(self, group: int, within_s: float | None = None) -> LayersLoaded:
        """The groups are asked for one after the other, as long as they come complete."""
        started_s = self._clock.now()
        layers = await self._stack.load_layers(self._objects, self._ends[group], within_s)
        found = tuple(
            None if data is None or one.head.stored.root != self._root else memoryview(data)
            for one, data in zip(self._objects, layers, strict=True)
        )
        size = sum(len(data) for data in found if data is not None)
        others = None
        if self._others and group == len(self._ends) - 1:
            left_s = None if within_s is None else within_s - (self._clock.now() - started_s)
            others, more = await self._store.load_planes(self._others, self._root, self._keys, left_s)
            size += more
        return LayersLoaded(found, others, size, self._clock.now() - started_s)


def _part(key: bytes, plane: Plane) -> Part:
    return Part(key=key, first_layer=0, layers=plane.layers, plane=plane.name)


def _stored(root: bytes, key: bytes, plane: Plane, row: Rows) -> StoredObject:
    """One plane of one block."""
    return StoredObject(
        part=_part(key, plane),
        root=root,
        shape=plane.shape,
        tokens=plane.shape.block_tokens,
        codec=RAW,
        payload=row.data,
    )


def _chunks(items: "Sequence[memoryview | Data | None]", size: int) -> "Iterator[Sequence[memoryview | Data | None]]":
    return (items[start : start + size] for start in range(0, len(items), size))


def _whole(block: "tuple[memoryview | Data | None, ...]") -> tuple[memoryview, ...] | None:
    parts = tuple(memoryview(part) for part in block if part is not None)
    return parts if len(parts) == len(block) else None
