"""What a tier gives up is coded for the next one on a thread of its own."""

import asyncio
import threading

import pytest

from netgain.ledger.clock import WallClock
from netgain.serving.blocks.keys import Namespace
from netgain.serving.tiers.codecs.coder import Coder, TierCodecs
from netgain.serving.tiers.codecs.lossless import Zstd
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.envelope import PlainEnvelope
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.kv_store import KVStore
from netgain.serving.tiers.object import Part, Shape, StoredObject, pack, unpack
from netgain.serving.tiers.planes import Plane, expected
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import Tier

SHAPE = Shape(1, 16, "bfloat16", 64, 16)
PLANE = Plane("target", 1, SHAPE)
NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n")
LATE_S = 60.0  # nothing waits so long but what hangs
DATED = 1_700_000_000


class Held(Zstd):
    """Encodes once it may, in whatever thread."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.may = threading.Event(), threading.Event()

    def encode(self, raw, form):
        self.began.set()
        assert self.may.wait(LATE_S)
        return super().encode(raw, form)


def block(root: bytes, number: int) -> StoredObject:
    payload = bytes([number]) * PLANE.block_bytes
    return StoredObject(Part(bytes([number]) * 32, 0, 1), root, SHAPE, 16, "raw", payload, written_s=DATED)


class Tiers:
    """Memory with room for two blocks, over memory that is written back through a codec."""

    def __init__(self, codec: Held, room: int = 1 << 20) -> None:
        clock = WallClock()
        coder = Coder({"zstd": codec}, clock, [TierCodecs(), TierCodecs(("zstd",), "always")])
        wanted = expected([PLANE], coder)
        size = len(pack(block(bytes(32), 1))) + 64
        self.upper, self.lower = (
            Tier(name, DramMedium(LRU(capacity)), clock, expected=wanted)
            for name, capacity in (("upper", 2 * size), ("lower", 1 << 20))
        )
        envelope = PlainEnvelope()
        self.stack = Stack([self.upper, self.lower], clock, room, back=(1,))
        self.store = KVStore(self.stack, [PLANE], clock, envelope, coder)
        self.root = envelope.root(NAMESPACE, b"")

    async def put(self, *numbers: int) -> None:
        for number in numbers:
            self.store.put_one(block(self.root, number))
            await self.stack._lanes[0].settle()

    async def began(self, codec: Held) -> None:
        async with asyncio.timeout(LATE_S):
            while not codec.began.is_set():
                await asyncio.sleep(0.001)


@pytest.fixture
def codec():
    one = Held()
    yield one
    one.may.set()


async def test_others_are_looked_for_and_loaded_while_an_object_is_coded(codec) -> None:
    tiers = Tiers(codec)
    await tiers.put(1, 2, 3)
    await tiers.began(codec)
    keys = [bytes([number]) * 32 for number in (2, 3)]
    assert (await tiers.store.locate(keys)).places == (0, 0)
    loaded = await tiers.store.load(tiers.root, keys)
    assert None not in loaded.blocks
    assert not codec.may.is_set(), "all of that while one was being coded"
    assert tiers.store.stats().queued_bytes[1] > 0, "what is being coded counts as queued"
    codec.may.set()
    await tiers.store.settle()
    (address,) = await tiers.lower.keys() or []
    (data,) = await tiers.lower.get([address])
    found = unpack(data, address)
    assert (found.codec, found.written_s, found.part.key) == ("zstd.1", DATED, bytes([1]) * 32)
    assert tiers.store.stats().queued_bytes == (0, 0)
    assert tiers.store.coder_stats()[1].stored == {"zstd": 1}
    assert (await tiers.store.load(tiers.root, [bytes([1]) * 32])).dates == (DATED,)
    await tiers.store.close()


async def test_what_waits_to_be_coded_has_the_room_of_the_queue_and_the_rest_is_counted(codec) -> None:
    size = len(pack(block(bytes(32), 1))) + 64
    tiers = Tiers(codec, room=3 * size)
    await tiers.put(*range(1, 11))
    codec.may.set()
    await tiers.store.settle()
    stats = tiers.store.stats()
    assert stats.demoted[0] == 8
    assert stats.dropped[1] == 5
    assert len(await tiers.lower.keys() or []) == 3
    await tiers.store.close()


async def test_what_is_purged_while_it_is_coded_does_not_come_back(codec) -> None:
    tiers = Tiers(codec)
    await tiers.put(1, 2, 3)
    await tiers.began(codec)
    purged = await tiers.store.purge(None)
    assert purged.failed is None
    codec.may.set()
    await tiers.store.settle()
    assert await tiers.lower.keys() == []
    assert tiers.store.stats().queued_bytes == (0, 0)
    await tiers.store.close()


async def test_the_end_does_not_wait_for_what_is_being_coded(codec) -> None:
    tiers = Tiers(codec)
    await tiers.put(1, 2, 3)
    await tiers.began(codec)
    async with asyncio.timeout(LATE_S):
        await tiers.store.close()
    assert not codec.may.is_set()
