"""What is purged stays away, whatever is asked for, promoted, given up or stored while the tiers are swept."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np

from netgain.ledger.clock import VirtualClock, WallClock
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.scope import Scope
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.envelope import PlainEnvelope
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.kv_store import KVStore
from netgain.serving.tiers.layered import LayeredObject
from netgain.serving.tiers.medium import Data
from netgain.serving.tiers.object import Seal, StoredObject, pack
from netgain.serving.tiers.planes import Plane, stored_of
from netgain.serving.tiers.purging import purge
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import Tier
from tests.serving.tiers.samples import SHAPE, packed, several, stored
from tests.serving.tiers.test_stack import SIZE, memory_over_disk, written_back
from tests.serving.tiers.test_tier import on, slow

NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n")
ACME = frozenset({"acme"})


def wrapped(envelope: PlainEnvelope, number: int, tenant: str) -> tuple[bytes, bytes]:
    """Address and bytes of an object of that tenant."""
    one = msgspec.structs.replace(stored(number), root=envelope.root(NAMESPACE, Scope(tenant).salt))
    ready = envelope.wrap(one)
    assert ready is not None
    return one.part.address(), pack(ready)


async def test_what_is_asked_for_during_a_sweep_is_not_given_even_where_it_is_read_before_and_comes_after() -> None:
    """A tier was swept while a slower one still had the KV: a request loaded it from there, and put it back."""
    clock = VirtualClock()
    fast = Tier("fast", DramMedium(LRU(1 << 20)), clock)
    stack = Stack([fast, slow(clock, latency_s=0.1, bytes_per_s=float(SIZE), timeout_s=60.0)], clock)
    envelope = PlainEnvelope(clock.now)
    theirs, other = dict([wrapped(envelope, 1, "acme")]), dict([wrapped(envelope, 2, "other")])

    async def work() -> None:
        for address, data in (theirs | other).items():
            for tier in stack.tiers:
                assert await tier.put(address, data)
        purging = asyncio.ensure_future(purge(stack, envelope, ACME))
        loads = []
        while not purging.done():
            loads.append((clock.now(), asyncio.ensure_future(stack.load([*theirs, *other]))))
            await clock.sleep(0.25)
        ended_s = clock.now()
        found = [await load for _, load in loads]
        assert clock.now() > ended_s, "some end after the purge"
        assert len(found) >= 4
        assert found == [[None, *other.values()]] * len(found)
        await stack.settle()
        assert await stack.locate([*theirs, *other]) == [None, 0]
        assert {name: (tier.failed, tier.removed) for name, tier in (await purging).tiers.items()} == {
            "fast": (None, 1),
            "slow": (None, 1),
        }

    await on(clock, work)


async def test_layers_are_refused_during_a_purge_and_not_promoted_across_one(tmp_path: Path) -> None:
    stack = memory_over_disk(tmp_path)
    one = stored(1, layers=30)
    await stack.tiers[1].put(one.part.address(), pack(one))
    before, during = (LayeredObject(one.part.address(), 4 * SHAPE.token_bytes) for _ in range(2))
    assert None not in await stack.load_layers([before], 10)
    async with stack.purging(lambda found: found.part == one.part):
        assert await stack.load_layers([during], 10) == [None]
    assert None not in await stack.load_layers([before], 30)
    await stack.settle()
    assert stack.stats().promoted == (0, 0)
    await stack.close()


async def test_what_memory_gives_up_during_a_purge_goes_down_unless_it_is_condemned(tmp_path: Path) -> None:
    stack = written_back(tmp_path, objects=2)
    objects = several(range(4))
    for address, data in list(objects.items())[:2]:
        stack.offer(address, data)
    await stack.settle()
    condemned = stored(0).part
    async with stack.purging(lambda found: found.part == condemned):
        for address, data in list(objects.items())[2:]:
            stack.offer(address, data)
        await stack.settle()
    assert await stack.locate(list(objects)) == [None, 1, 0, 0]
    await stack.close()


async def test_what_waits_to_be_moved_down_when_a_purge_begins_is_taken_out() -> None:
    memory = DramMedium(LRU(3 * SIZE))
    tiers = [Tier("dram", memory, WallClock()), Tier("below", DramMedium(LRU(1 << 20)), WallClock())]
    stack = Stack(tiers, WallClock(), back=(1,))
    moved: list[bytes] = []
    stack.move_down_by(lambda address, data, tier: moved.append(address))
    objects = list(several(range(3)))
    for address, data in several(range(3)).items():
        await memory.write(address, data)
    await memory.write(*packed(9, layers=5))  # others have to go for it, and wait: the loop had no turn
    condemned = stored(1).part
    async with stack.purging(lambda found: found.part == condemned):
        pass
    await stack.settle()
    assert moved[0] == objects[0]
    assert objects[1] not in moved
    assert objects[1] not in {*(await tiers[0].keys() or [])}
    await stack.close()


async def test_deleting_waits_for_no_queue_that_never_empties() -> None:
    clock = VirtualClock()
    stack = Stack([slow(clock, bytes_per_s=float(SIZE))], clock)

    async def flood() -> None:
        for number in range(100):
            stack.offer(*packed(number))
            await clock.sleep(0.5)

    async def work() -> None:
        flooding = asyncio.ensure_future(flood())
        await clock.sleep(3.0)
        began_s = clock.now()
        assert await stack.delete([packed(0)[0], packed(5)[0]])
        assert clock.now() - began_s < 3.0
        flooding.cancel()
        await stack.settle()
        assert not {packed(0)[0], packed(5)[0]} & {*(await stack.tiers[0].keys() or [])}

    await on(clock, work)


async def test_keys_are_destroyed_before_anything_is_waited_for() -> None:
    """What is refused is removed behind what is queued: a queue that is never empty kept a purge from beginning."""
    clock = VirtualClock()
    plane = Plane("target", 2, SHAPE)
    tier = slow(clock, bytes_per_s=float(SIZE), timeout_s=60.0)
    envelope = PlainEnvelope(clock.now)
    store = KVStore(Stack([tier], clock), [plane], clock, envelope)
    root = envelope.root(NAMESPACE, Scope("acme").salt)

    def block(number: int) -> StoredObject:
        return stored_of(root, bytes([number]) * 32, plane, np.zeros(plane.block_bytes, np.uint8), 0)

    async def work() -> None:
        one = block(1)
        sealed = msgspec.structs.replace(one, payload=bytes(plane.block_bytes + 16), seal=Seal(bytes(16), bytes(24)))
        await tier.put(one.part.address(), pack(sealed))
        for number in range(2, 9):
            store.put_one(block(number))
        assert (await store.load(root, [one.part.key])).blocks == (None,)
        await asyncio.sleep(0)
        purging = asyncio.ensure_future(store.purge(ACME))
        await asyncio.sleep(0)
        assert envelope.wrap(one) is None
        assert (await purging).failed is None
        await store.settle()
        assert await tier.keys() == []

    await on(clock, work)


async def test_coding_what_is_given_up_lets_others_have_the_loop() -> None:
    stack = Stack(
        [
            Tier("dram", DramMedium(LRU(4 * SIZE)), WallClock()),
            Tier("below", DramMedium(LRU(1 << 20)), WallClock()),
        ],
        WallClock(),
        back=(1,),
    )
    turns = 0
    seen: list[int] = []

    async def move(address: bytes, data: Data, tier: int) -> None:
        seen.append(turns)
        await asyncio.sleep(0)

    stack.move_down_by(move)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.ensure_future(others())
    for address, data in several(range(4)).items():
        await stack.tiers[0].put(address, data)
    await stack.tiers[0].put(*packed(9, layers=7))
    await stack.settle()
    ticking.cancel()
    assert len(seen) >= 2
    assert seen == sorted(set(seen)), "at most one in a turn"
