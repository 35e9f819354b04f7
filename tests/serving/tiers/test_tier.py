"""A tier never keeps anybody waiting beyond its bound, never hands out what it did not check, and counts all of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from netgain.cost.link import ShapedLink
from netgain.ledger.clock import VirtualClock, WallClock
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.medium import FaultKind
from netgain.serving.tiers.object import Reason
from netgain.serving.tiers.shaped import ShapedMedium
from netgain.serving.tiers.tier import Tier, TierOptions
from tests.serving.tiers.samples import packed, several

T = TypeVar("T")


def dram(capacity: int = 1 << 20) -> Tier:
    return Tier("dram", DramMedium(LRU(capacity)), WallClock())


def slow(clock: VirtualClock, latency_s: float = 0.0, bytes_per_s: float = 1e9, **options: float) -> Tier:
    """Memory behind a link of that shape, in both directions."""
    down, up = ShapedLink(latency_s, bytes_per_s), ShapedLink(latency_s, bytes_per_s)
    return Tier("slow", ShapedMedium(DramMedium(LRU(1 << 30)), clock, down, up), clock, TierOptions(**options))


async def on(clock: VirtualClock, work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await work()

    return await clock.run(asyncio.ensure_future(main()))


async def test_hits_and_misses_bytes_and_seconds_are_counted() -> None:
    tier = dram()
    address, data = packed(1)
    assert await tier.put(address, data)
    assert await tier.get([address, packed(2)[0]]) == [data, None]
    assert await tier.contains([address, packed(2)[0]]) == [True, False]
    assert await tier.keys() == [address]
    stats = tier.stats()
    assert (stats.hits, stats.misses) == (1, 1)
    assert (stats.loaded.objects, stats.loaded.bytes) == (1, len(data))
    assert (stats.stored.objects, stats.stored.bytes) == (1, len(data))
    assert stats.loaded.seconds > 0
    assert (stats.usage.objects, stats.usage.bytes) == (1, len(data))
    assert await tier.delete([address]) == 1
    assert await tier.get([address]) == [None]
    await tier.close()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Reason.TORN),
        (packed(1)[1][:50], Reason.TORN),
        (packed(1)[1][:-1] + b"\xff", Reason.DAMAGED),
        (packed(2)[1], Reason.WRONG_KEY),
        (b"something else", Reason.FOREIGN),
    ],
)
async def test_what_is_refused_is_a_miss_and_is_removed_and_counted(data: bytes, reason: Reason) -> None:
    """LMCache/LMCache#3292: missing, short or changed cache files crashed the worker or gave wrong answers."""
    tier = dram()
    address = packed(1)[0]
    await tier.put(address, data)
    assert await tier.get([address]) == [None]
    assert tier.stats().refused == {reason: 1}
    assert await tier.contains([address]) == [False]
    assert await tier.get([address]) == [None]
    assert (tier.stats().hits, tier.stats().misses, tier.stats().refused) == (0, 2, {reason: 1})


async def test_a_key_of_another_length_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        await dram().get([b"short"])


async def test_capacity_holds_and_evictions_are_counted() -> None:
    objects = several(range(20))
    size = len(packed(0)[1])
    tier = dram(capacity=5 * size + 10)
    for address, data in objects.items():
        assert await tier.put(address, data)
    usage = tier.stats().usage
    assert (usage.objects, usage.evictions, usage.evicted_bytes) == (5, 15, 15 * size)
    kept = [data is not None for data in await tier.get(list(objects))]
    assert kept == [False] * 15 + [True] * 5


async def test_an_object_larger_than_the_tier_is_not_kept_and_evicts_nothing() -> None:
    """LMCache/LMCache#2942: storing waited for ever for room that could not be made."""
    address, data = packed(1)
    tier = dram(capacity=len(data))
    await tier.put(address, data)
    assert not await tier.put(*packed(2, layers=4))
    assert tier.stats().unwritten == {FaultKind.TOO_LARGE: 1}
    assert await tier.get([address]) == [data]


async def test_what_is_read_outlives_its_eviction() -> None:
    """kvcache-ai/Mooncake#850: a slow reader outlived its lease and read memory that had been used again."""
    address, data = packed(1)
    tier = dram(capacity=len(data))
    await tier.put(address, data)
    (held,) = await tier.get([address])
    for number in range(2, 50):
        await tier.put(*packed(number))
    assert held == data


async def test_a_view_that_is_kept_keeps_nothing_of_the_buffer_around_it() -> None:
    """sgl-project/sglang#19332: memory grew, since views of what was kept held whole pools."""
    address, data = packed(1)
    pool = bytearray(data) + bytearray(1 << 20)
    tier = dram(capacity=len(data))
    with memoryview(pool) as view, view[: len(data)] as part:
        assert await tier.put(address, part)
    pool.clear()  # BufferError while anybody holds a view
    assert await tier.get([address]) == [data]


async def test_looking_up_without_loading_costs_no_room() -> None:
    """LMCache/LMCache#1034: pins of hits that were never loaded leaked until nothing could be stored."""
    objects = several(range(4))
    tier = dram(capacity=sum(map(len, objects.values())))
    for address, data in objects.items():
        await tier.put(address, data)
    for _ in range(1000):
        await tier.contains(list(objects))
    for number in range(10, 14):
        assert await tier.put(*packed(number))
    assert tier.stats().usage.objects == 4


async def test_a_hung_medium_costs_one_bounded_wait_and_then_nothing() -> None:
    """LMCache/LMCache#1491: with the look-up service not ready every request was stuck."""
    clock = VirtualClock()
    tier = slow(clock, latency_s=1e9, timeout_s=2.0, open_s=1.0)

    async def ask() -> list[float]:
        waits = []
        for _ in range(20):
            began_s = clock.now()
            assert await tier.get([packed(1)[0]] * 40) == [None] * 40
            waits.append(clock.now() - began_s)
            await clock.sleep(0.5)
        return waits

    waits = await on(clock, ask)
    assert waits == [2.0] + [0.0] * 19
    stats = tier.stats()
    assert stats.unread == {FaultKind.TIMEOUT: 40, FaultKind.BREAKER: 19 * 40}
    assert stats.breaker_opened > 1, "probes went on"


async def test_a_medium_that_is_well_again_is_used_again() -> None:
    clock = VirtualClock()
    link = ShapedLink(0.0, 1e9)
    tier = Tier("t", ShapedMedium(DramMedium(LRU(1 << 20)), clock, link, link), clock)
    address, data = packed(1)

    async def ask() -> list[bool]:
        await tier.put(address, data)
        link.latency_s = 100.0
        seen = []
        for attempt in range(30):
            seen.append((await tier.get([address])) == [data])
            await clock.sleep(1.0)
            if attempt == 9:
                link.latency_s = 0.0
        return seen

    seen = await on(clock, ask)
    assert not any(seen[:10])
    assert all(seen[20:])


async def test_a_shorter_bound_of_the_caller_gets_what_came_and_blames_nobody() -> None:
    clock = VirtualClock()
    objects = several(range(10))
    size = len(packed(0)[1])
    tier = slow(clock, bytes_per_s=float(size), group=1)

    async def ask() -> float:
        for address, data in objects.items():
            await tier.put(address, data)
        began_s = clock.now()
        found = await tier.get(list(objects), within_s=3.5)
        assert [data is not None for data in found] == [True] * 3 + [False] * 7
        return clock.now() - began_s

    assert await on(clock, ask) == pytest.approx(3.5)
    assert tier.stats().unread == {FaultKind.ABANDONED: 7}
    assert tier.usable


async def test_slow_is_not_dead() -> None:
    """A transfer longer than the timeout goes on while its groups come in time."""
    clock = VirtualClock()
    objects = several(range(40))
    size = len(packed(0)[1])
    tier = slow(clock, bytes_per_s=10.0 * size, group=8, timeout_s=1.0)

    async def ask() -> list[bool]:
        for address, data in objects.items():
            await tier.put(address, data)
        return [data is not None for data in await tier.get(list(objects))]

    assert all(await on(clock, ask))


async def test_the_link_is_learned_from_use() -> None:
    clock = VirtualClock()
    tier = slow(clock, latency_s=0.05, bytes_per_s=1e6, timeout_s=100.0, group=1)

    async def ask() -> None:
        for number in range(20):
            address, data = packed(number, layers=1 + 20 * number)
            await tier.put(address, data)
            await tier.get([address])

    assert tier.load_link is None
    await on(clock, ask)
    for link in (tier.load_link, tier.stats().stored.link):
        assert link is not None
        assert link.latency_s == pytest.approx(0.05, rel=0.05)
        assert link.bytes_per_s == pytest.approx(1e6, rel=0.05)
        assert link.error < 0.01


async def test_callers_at_once_wait_for_a_hung_medium_together() -> None:
    clock = VirtualClock()
    tier = slow(clock, latency_s=1e9, timeout_s=2.0)
    address = packed(1)[0]

    async def ask() -> float:
        await asyncio.gather(*(tier.get([address]) for _ in range(50)))
        return clock.now()

    assert await on(clock, ask) == 2.0
