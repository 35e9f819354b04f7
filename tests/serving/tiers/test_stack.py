"""Several tiers are one: the fastest that has it gives it, the faster ones get it, and storing never holds anybody up."""

import asyncio
from pathlib import Path

import pytest

from netgain.cost.link import ShapedLink
from netgain.ledger.clock import VirtualClock, WallClock
from netgain.serving.tiers.disk import DiskMedium, DiskOptions
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


def written_back(folder: Path, objects: int, queue_objects: int = 1000) -> Stack:
    memory = Tier("dram", DramMedium(LRU(objects * SIZE)), WallClock())
    disk = Tier("disk", DiskMedium(folder, LRU(1 << 30)), WallClock())
    return Stack([memory, disk], WallClock(), queue_objects * SIZE, back=(1,))


async def test_a_tier_that_is_written_back_gets_what_the_one_above_gives_up(tmp_path: Path) -> None:
    objects = several(range(10))
    stack = written_back(tmp_path, objects=4)
    for address, data in list(objects.items())[:4]:
        assert stack.offer(address, data)
    await stack.settle()
    assert stack.stats().tiers[1].stored.objects == 0, "memory takes the writes"
    for address, data in list(objects.items())[4:]:
        assert stack.offer(address, data)
    await stack.settle()
    assert await stack.locate(list(objects)) == [1] * 6 + [0] * 4
    assert stack.stats().demoted == (6, 0)
    assert await stack.load(list(objects)) == list(objects.values())
    await stack.close()


async def test_what_came_back_up_is_not_written_down_again(tmp_path: Path) -> None:
    objects = several(range(6))
    stack = written_back(tmp_path, objects=3)
    for address, data in objects.items():
        stack.offer(address, data)
    await stack.settle()
    first = list(objects)[:3]
    for _ in range(3):
        assert None not in await stack.load(first)  # promoted: the others go down
        await stack.settle()
        assert None not in await stack.load(list(objects)[3:])
        await stack.settle()
    assert stack.stats().promoted[1] >= 12
    assert stack.stats().tiers[1].usage.objects == 6
    await stack.close()


async def test_what_would_end_with_the_process_goes_down_at_the_end_and_the_last_used_first(tmp_path: Path) -> None:
    objects = several(range(40))
    stack = written_back(tmp_path, objects=1000, queue_objects=3)
    for address, data in objects.items():
        stack.offer(address, data)
        await stack.settle()
    await stack.hand_down()
    assert stack.stats().dropped == (0, 0), "it waits for room in the queue"
    await stack.close()
    last = DiskMedium(tmp_path, LRU(1 << 30))
    assert sorted([key async for page in last.pages() for key in page]) == sorted(objects)
    times = {key: (tmp_path / key.hex()[:2] / f"{key.hex()}.kv").stat().st_mtime_ns for key in objects}
    assert sorted(objects, key=lambda key: -times[key]) == list(objects)
    await last.close()


async def test_what_a_full_queue_cannot_take_of_what_is_given_up_is_counted() -> None:
    clock = VirtualClock()
    memory = Tier("dram", DramMedium(LRU(2 * SIZE)), clock)
    stack = Stack([memory, slow(clock, bytes_per_s=float(SIZE))], clock, queue_bytes=3 * SIZE, back=(1,))

    async def work() -> None:
        for address, data in several(range(12)).items():
            stack.offer(address, data)
            while stack.stats().queued_bytes[0]:
                await asyncio.sleep(0)
        assert clock.now() == 0.0, "nobody waited for the slow tier"
        await stack.settle()

    await on(clock, work)
    assert stack.stats().demoted == (10, 0)
    assert stack.stats().dropped == (0, 7)
    assert stack.stats().tiers[1].stored.objects == 3


async def test_a_folder_above_gives_up_to_the_tier_below_it(tmp_path: Path) -> None:
    upper = Tier("shm", DiskMedium(tmp_path, LRU(3 * SIZE)), WallClock())
    lower = Tier("dram", DramMedium(LRU(1 << 20)), WallClock())
    stack = Stack([upper, lower], WallClock(), back=(1,))
    objects = several(range(9))
    for address, data in objects.items():
        stack.offer(address, data)
    await stack.settle()
    await asyncio.sleep(0)  # what the threads gave up is told on the loop
    await stack.settle()
    assert await stack.load(list(objects)) == list(objects.values())
    assert stack.stats().tiers[1].usage.objects >= 6
    await stack.close()


async def test_three_tiers_in_a_row_hand_on(tmp_path: Path) -> None:
    middle = Tier("small", DramMedium(LRU(2 * SIZE)), WallClock())
    disk = Tier("disk", DiskMedium(tmp_path, LRU(1 << 30)), WallClock())
    stack = Stack([Tier("dram", DramMedium(LRU(2 * SIZE)), WallClock()), middle, disk], WallClock(), back=(1, 2))
    objects = several(range(7))
    for address, data in objects.items():
        stack.offer(address, data)
    for _ in range(3):
        await stack.settle()
    assert await stack.locate(list(objects)) == [2, 2, 2, 1, 1, 0, 0]
    await stack.close()


async def test_what_is_condemned_leaves_the_queues_and_the_rest_is_stored() -> None:
    clock = VirtualClock()
    stack = Stack([slow(clock, bytes_per_s=float(SIZE))], clock)
    objects = several(range(8))
    condemned = set(list(objects)[::2])

    async def work() -> None:
        for address, data in objects.items():
            stack.offer(address, data)
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        async with stack.purging(lambda found: found.part.address() in condemned) as queued:
            assert queued == 3, "the first is being stored"
            assert clock.now() == pytest.approx(1.0), "which was waited for"
        await stack.settle()

    await on(clock, work)
    assert sorted(await stack.tiers[0].keys() or []) == sorted({*objects} - condemned | {next(iter(objects))})
    assert stack.stats().queued_bytes == (0,)


@pytest.mark.parametrize("room", [1000, 32])
async def test_what_is_over_a_smaller_capacity_at_the_start_is_handed_down(tmp_path: Path, room: int) -> None:
    """It was deleted when the folder was read, before anybody could be told. A queue with room for few makes it wait."""
    objects = several(range(40))
    size = len(next(iter(objects.values())))
    wide = DiskMedium(tmp_path, LRU(1 << 20))
    for address, data in objects.items():
        await wide.write(address, data)
    await wide.close()
    upper = DiskMedium(tmp_path, LRU(4 * size), DiskOptions(hands_down=True))
    assert upper.usage().bytes == 40 * size, "it is still there"
    below = DramMedium(LRU(1 << 20))
    clock = WallClock()
    tiers = [Tier("disk", upper, clock), Tier("dram", below, clock)]
    stack = Stack(tiers, clock, room * size, back=(1,))
    await stack.begin()
    await stack.settle()
    assert upper.usage().bytes == 4 * size
    stats = stack.stats()
    assert stats.demoted == (36, 0)
    assert stats.dropped == (0, 0)
    assert stats.tiers[0].usage.evictions == 36
    kept = set(await tiers[0].keys() or [])
    assert len(kept) == 4
    assert set(await tiers[1].keys() or []) == set(objects) - kept
    found = await stack.load(list(objects))
    assert found == list(objects.values())
    await stack.close()


async def test_without_a_tier_below_what_is_over_at_the_start_is_evicted_and_counted(tmp_path: Path) -> None:
    objects = several(range(10))
    wide = DiskMedium(tmp_path, LRU(1 << 20))
    for address, data in objects.items():
        await wide.write(address, data)
    await wide.close()
    narrow = DiskMedium(tmp_path, LRU(4 * len(next(iter(objects.values())))))
    assert narrow.usage().evictions == 6
    assert narrow.usage().objects == 4
    await narrow.close()
