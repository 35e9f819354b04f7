"""A tier that is far away or slow is a tier that is well: long prompts, bursts and large objects do not make it a broken one."""

import asyncio
from uuid import uuid4

from netgain.cost.link import ShapedLink
from netgain.ledger.clock import VirtualClock, WallClock
from netgain.serving.engine.kv_load import TieringOptions
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.medium import FaultKind
from netgain.serving.tiers.objects import ObjectsMedium
from netgain.serving.tiers.shaped import ShapedMedium
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import Tier, TierOptions
from tests.serving.tiers.links import link
from tests.serving.tiers.samples import packed, several
from tests.serving.tiers.servers import Server
from tests.serving.tiers.test_media import s3_options
from tests.serving.tiers.test_tier import on

BLOCKS = 544  # of a prompt of 8,704 tokens
BLOCK_BYTES = 368 << 10


async def test_a_long_prompt_is_found_in_object_storage_far_away(shared_s3: Server) -> None:
    """With the bounds that a server has by default."""
    clock, prefix = WallClock(), str(uuid4())
    objects = several(range(BLOCKS))
    near = ObjectsMedium("s3://netgain", s3_options(shared_s3.port, prefix))
    for address, data in objects.items():
        await near.write(address, data)
    await near.close()
    async with link(shared_s3.port, latency_s=0.06) as far:
        tier = Tier("s3", ObjectsMedium("s3://netgain", s3_options(far.port, prefix)), clock)
        stack = Stack([tier], clock)
        assert await tier.contains(list(objects)) == [True] * BLOCKS
        assert not tier.stats().other_faults

        before = far.asked
        assert await stack.locate_prefix([packed(BLOCKS)[0], *objects]) == []
        assert far.asked - before < BLOCKS / 2, "one question and not all"

        for _ in range(
            20
        ):  # where others use this machine, the time may be up before anything is known, but not every time
            known = await stack.locate_prefix(list(objects), TieringOptions().lookup_s)
            assert len(known) <= BLOCKS
            if known:
                break
        assert known
        assert tier.usable
        await stack.close()


async def test_what_is_known_when_the_time_is_up_is_the_answer() -> None:
    clock = VirtualClock()
    far = ShapedLink(0.06, 1e9)
    objects = several(range(BLOCKS))
    tier = Tier("far", ShapedMedium(DramMedium(LRU(1 << 30)), clock, far, ShapedLink(0.0, 1e12)), clock)
    stack = Stack([tier], clock)

    async def ask() -> None:
        for address, data in objects.items():
            await tier.put(address, data)
        began_s = clock.now()
        assert await stack.locate_prefix(list(objects)) == [0] * BLOCKS
        assert clock.now() - began_s < 1.0
        assert await stack.locate_prefix(list(objects), 0.2) == [0] * 192
        await tier.delete(list(objects)[100:101])
        assert await stack.locate_prefix(list(objects)) == [0] * 100
        assert tier.usable

    await on(clock, ask)


async def test_a_burst_on_a_slow_link_is_no_death() -> None:
    """Who waits behind others is not slow, and what shares a link takes longer."""
    clock = VirtualClock()
    tier, stored = slow_tier(clock, bytes_per_s=50e6, objects=16)

    async def ask() -> None:
        for address, data in stored.items():
            await tier.put(address, data)
        found = await asyncio.gather(*(tier.get(list(stored)) for _ in range(20)))
        assert found == [list(stored.values())] * 20
        assert not tier.stats().unread
        assert tier.stats().breaker_opened == 0

    await on(clock, ask)


async def test_a_large_group_on_a_slow_link_is_no_death() -> None:
    clock = VirtualClock()
    tier, stored = slow_tier(clock, bytes_per_s=10e6, objects=16, size=2 << 20)

    async def ask() -> None:
        for address, data in stored.items():
            assert await tier.put(address, data)
        assert await tier.get(list(stored)) == list(stored.values())
        assert tier.stats().breaker_opened == 0

    await on(clock, ask)


async def test_a_slow_link_that_hangs_costs_a_wait_that_is_bounded_still() -> None:
    clock = VirtualClock()
    link = ShapedLink(0.0, 50e6)
    tier = Tier("slow", ShapedMedium(DramMedium(LRU(1 << 30)), clock, link, ShapedLink(0.0, 1e12)), clock)
    address, data = packed(1, layers=BLOCK_BYTES // 192)

    async def ask() -> None:
        await tier.put(address, data)
        assert await tier.get([address]) == [data]
        link.latency_s = 1e9
        began_s = clock.now()
        found = await asyncio.gather(*(tier.get([address] * 16) for _ in range(20)))
        assert found == [[None] * 16] * 20
        assert clock.now() - began_s < 6.0
        assert tier.stats().unread[FaultKind.TIMEOUT] <= 4 * 16, "those who waited for a place were not let in"

    await on(clock, ask)


async def test_who_waits_for_a_place_is_bounded_by_its_own_time_and_gives_the_place_back() -> None:
    clock = VirtualClock()
    tier, stored = slow_tier(clock, bytes_per_s=16.0 * BLOCK_BYTES, objects=16)

    async def ask() -> None:
        for address, data in stored.items():
            await tier.put(address, data)
        busy = [asyncio.ensure_future(tier.get(list(stored))) for _ in range(8)]
        await clock.sleep(0.1)
        began_s = clock.now()
        assert await tier.get(list(stored), within_s=0.5) == [None] * 16
        assert clock.now() - began_s <= 0.5 + 1e-6
        assert tier.stats().unread == {FaultKind.ABANDONED: 16}
        await asyncio.gather(*busy)
        assert await tier.get(list(stored)) == list(stored.values())
        assert tier.usable

    await on(clock, ask)


def slow_tier(
    clock: VirtualClock, bytes_per_s: float, objects: int, size: int = BLOCK_BYTES
) -> tuple[Tier, dict[bytes, bytes]]:
    """A tier behind such a link down, and objects of about that size for it."""
    down, up = ShapedLink(0.0, bytes_per_s), ShapedLink(0.0, 1e12)
    tier = Tier("slow", ShapedMedium(DramMedium(LRU(1 << 30)), clock, down, up), clock, TierOptions())
    return tier, dict(packed(number, layers=size // 192) for number in range(objects))
