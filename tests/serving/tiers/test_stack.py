"""Several tiers are one: the fastest that has it gives it, the faster ones get it, and storing never holds anybody up."""

import asyncio
from pathlib import Path

import pytest

from netgain.cost.link import ShapedLink
from netgain.ledger.clock import VirtualClock, WallClock
from netgain.serving.tiers.disk import DiskMedium
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.layered import LayeredObject
from netgain.serving.tiers.object import pack
from netgain.serving.tiers.shaped import ShapedMedium
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import Tier
from tests.serving.tiers.samples import SHAPE, packed, several, stored
from tests.serving.tiers.test_tier import on, slow

SIZE = len(packed(0)[1])


def memory_over_disk(folder: Path, objects: int = 1000) -> Stack:
    memory = Tier("dram", DramMedium(LRU(objects * SIZE)), WallClock())
    disk = Tier("disk", DiskMedium(folder, LRU(1 << 30)), WallClock())
    return Stack([memory, disk], WallClock())


async def test_what_memory_gave_up_comes_from_disk_and_is_promoted(tmp_path: Path) -> None:
    """kvcache-ai/Mooncake#3465: an evicted key was listed with an empty value. sgl-project/sglang#33862: a small fast tier
    kept everything from the slow one."""
    objects = several(range(10))
    stack = memory_over_disk(tmp_path, objects=4)
    for address, data in objects.items():
        assert stack.offer(address, data)
    await stack.settle()
    assert await stack.locate(list(objects)) == [1] * 6 + [0] * 4
    first = list(objects)[:3]
    assert await stack.load(first) == [objects[address] for address in first]
    await stack.settle()
    assert await stack.locate(first) == [0, 0, 0]
    assert stack.stats().promoted == (0, 3)
    await stack.close()
    await stack.close()


async def test_layers_come_each_object_from_the_tier_that_has_it_and_are_promoted_once_whole(tmp_path: Path) -> None:
    stack = memory_over_disk(tmp_path)
    memory, disk = stack.tiers
    kept = [stored(number, layers=30) for number in range(6)]
    for number, one in enumerate(kept):
        await (memory if number % 2 else disk).put(one.part.address(), pack(one))
    damaged = pack(kept[0])[:100] + b"\xff" + pack(kept[0])[101:]
    await memory.put(kept[0].part.address(), damaged)
    asked = [LayeredObject(one.part.address(), 4 * SHAPE.token_bytes) for one in kept]
    for end in (10, 20):
        assert None not in await stack.load_layers(asked, end)
    assert [one.tier for one in asked] == [1, 0, 1, 0, 1, 0]
    await stack.settle()
    assert stack.stats().promoted == (0, 0)
    assert None not in await stack.load_layers(asked, 30)
    await stack.settle()
    assert stack.stats().promoted == (0, 3)
    assert await memory.get([one.part.address() for one in kept]) == [pack(one) for one in kept]
    await stack.close()


async def test_the_next_process_finds_on_disk_what_memory_lost(tmp_path: Path) -> None:
    objects = several(range(5))
    for found in ([None] * 5, list(objects.values())):
        stack = memory_over_disk(tmp_path)
        assert await stack.load(list(objects)) == found
        for address, data in objects.items():
            stack.offer(address, data)
        await stack.settle()
        await stack.close()


async def test_a_damaged_copy_in_a_fast_tier_is_replaced_from_a_slower_one(tmp_path: Path) -> None:
    stack = memory_over_disk(tmp_path)
    address, data = packed(1)
    memory, disk = stack.tiers
    await memory.put(address, data[:-1] + b"\xff")
    await disk.put(address, data)
    assert await stack.load([address]) == [data]
    await stack.settle()
    assert await memory.get([address]) == [data]
    await stack.close()


async def test_offering_never_waits_and_what_a_slow_tier_cannot_take_is_dropped_and_counted() -> None:
    """LMCache/LMCache#2942: storing waited for ever where nothing could be evicted."""
    clock = VirtualClock()
    fast = Tier("fast", DramMedium(LRU(1 << 30)), clock)
    stack = Stack([fast, slow(clock, bytes_per_s=float(SIZE))], clock, queue_bytes=5 * SIZE)
    objects = several(range(12))

    async def work() -> None:
        for address, data in objects.items():
            assert stack.offer(address, data)
            await asyncio.sleep(0.0)
            assert clock.now() == 0.0
            await fast_settled()
        assert await stack.locate(list(objects)) == [0] * 12
        await stack.settle()

    async def fast_settled() -> None:
        while stack.stats().queued_bytes[0]:
            await asyncio.sleep(0)

    await on(clock, work)
    stats = stack.stats()
    assert stats.dropped == (0, 7)
    assert [tier.stored.objects for tier in stats.tiers] == [12, 5]
    assert stats.queued_bytes == (0, 0)
    assert clock.now() == pytest.approx(5.0)


async def test_offering_twice_queues_once() -> None:
    clock = VirtualClock()
    stack = Stack([slow(clock, bytes_per_s=float(SIZE))], clock)

    async def work() -> None:
        for _ in range(3):
            assert stack.offer(*packed(1))
        await stack.settle()

    await on(clock, work)
    assert stack.stats().tiers[0].stored.objects == 1


async def test_a_bound_holds_over_all_tiers() -> None:
    clock = VirtualClock()
    links = [ShapedLink(1.5, 1e9) for _ in range(2)]
    media = [ShapedMedium(DramMedium(LRU(1 << 20)), clock, link, link) for link in links]
    stack = Stack([Tier(str(index), medium, clock) for index, medium in enumerate(media)], clock)

    async def work() -> float:
        stack.offer(*packed(1))
        await stack.settle()
        began_s = clock.now()
        assert await stack.load([packed(1)[0], packed(2)[0]], within_s=2.0) == [packed(1)[1], None]
        return clock.now() - began_s

    assert await on(clock, work) == pytest.approx(2.0)


async def test_deleted_means_in_every_tier(tmp_path: Path) -> None:
    stack = memory_over_disk(tmp_path)
    stack.offer(*packed(1))
    assert await stack.delete([packed(1)[0]])
    assert await stack.locate([packed(1)[0]]) == [None]
    assert await stack.load([packed(1)[0]]) == [None]
    await stack.close()
