"""A Valkey server and a bucket are kept below a capacity of netgain's own, by several engines, whatever their own limits are."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from netgain.ledger.clock import WallClock
from netgain.serving.tiers.bounded import BoundedMedium, BoundedOptions, ListedMedium
from netgain.serving.tiers.medium import FaultKind
from netgain.serving.tiers.objects import ObjectsMedium
from netgain.serving.tiers.remote import RemoteMedium, RemoteOptions
from netgain.serving.tiers.server_limits import ServerLimits, limit_notices
from netgain.serving.tiers.tending import begin, notices
from netgain.serving.tiers.tier import Tier, TierOptions
from tests.serving.tiers.samples import packed, several
from tests.serving.tiers.servers import Server, valkey
from tests.serving.tiers.test_media import s3_options

PATIENCE_S = 60.0
SIZE = len(packed(0)[1])
Make = Callable[[str], ListedMedium]


@pytest.fixture(params=["valkey", "s3"])
def make(request: pytest.FixtureRequest) -> Make:
    """A medium of a store, under a prefix of its own."""
    server: Server = request.getfixturevalue(f"shared_{request.param}")

    def of(prefix: str) -> ListedMedium:
        if request.param == "valkey":
            return RemoteMedium(f"redis://127.0.0.1:{server.port}/0", RemoteOptions(prefix=f"{prefix}:"))
        return ObjectsMedium("s3://netgain", s3_options(server.port, prefix=prefix))

    return of


@contextlib.asynccontextmanager
async def tier_of(medium: ListedMedium, objects: int, relist_s: float = 3600.0) -> AsyncIterator[Tier]:
    """Holds so many objects, and has listed what is there."""
    bounded = BoundedMedium(medium, objects * SIZE, BoundedOptions(relist_s=relist_s, retry_s=0.05))
    tier = Tier("store", bounded, WallClock(), TierOptions(timeout_s=30.0, pause_s=0.1))
    bounded.begin()
    try:
        await until(lambda: bounded.usage().objects is not None)
        yield tier
    finally:
        await tier.close()


async def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


async def there(medium: ListedMedium, prefix: str = "") -> set[bytes]:
    return {key async for page in medium.pages() for key in page}


async def test_what_was_used_longest_ago_makes_room(make: Make) -> None:
    objects = several(range(12))
    addresses = list(objects)
    async with tier_of(looking := make("room"), 8) as tier:
        for address in addresses[:8]:
            assert await tier.put(address, objects[address])
        assert await tier.get([addresses[0]]) == [objects[addresses[0]]]
        for address in addresses[8:]:
            assert await tier.put(address, objects[address])
        await until(lambda: tier.stats().usage.evictions == 4)
        usage = tier.stats().usage
        assert (usage.bytes, usage.capacity_bytes, usage.evicted_bytes) == (8 * SIZE, 8 * SIZE, 4 * SIZE)
        assert await there(looking) == {addresses[0], *addresses[5:]}


async def test_at_the_start_what_is_over_goes_and_what_others_wrote_is_known(make: Make) -> None:
    objects = several(range(20))
    plain = make("start")
    for address, data in objects.items():
        await plain.write(address, data)
    async with tier_of(make("start"), 6) as tier:
        await until(lambda: tier.stats().usage.bytes == 6 * SIZE)
        left = await there(plain)
        assert len(left) == 6
        assert tier.stats().usage.evictions == 14
        assert await tier.contains(sorted(objects)) == [key in left for key in sorted(objects)]
    await plain.close()


async def test_engines_that_share_a_store_keep_it_below_the_capacity_together(make: Make) -> None:
    objects = several(range(16))
    addresses = list(objects)
    async with (
        tier_of(make("both"), 6, relist_s=0.1) as one,
        tier_of(looking := make("both"), 6, relist_s=0.1) as other,
    ):
        for number, address in enumerate(addresses):
            tier = one if number % 2 else other
            deadline_s = time.monotonic() + PATIENCE_S
            while not await tier.put(address, objects[address]):  # refused while too much is still to be removed
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.05)
        deadline_s = time.monotonic() + PATIENCE_S
        while len(await there(looking)) > 6:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)
        await until(lambda: one.stats().usage.bytes == other.stats().usage.bytes)
        usage = one.stats().usage
        assert usage.bytes is not None
        assert 0 < usage.bytes <= 6 * SIZE
        assert not one.stats().breaker_opened


async def test_what_is_larger_than_the_whole_is_refused(make: Make) -> None:
    async with tier_of(make("large"), 2) as tier:
        assert not await tier.put(*packed(1, layers=400))
        assert tier.stats().unwritten == {FaultKind.TOO_LARGE: 1}


async def test_what_others_removed_takes_no_room(make: Make) -> None:
    objects = several(range(4))
    async with tier_of(other := make("gone"), 8) as tier:
        for address, data in objects.items():
            assert await tier.put(address, data)
        await other.remove(list(objects)[:2])
        assert await tier.contains(list(objects)) == [False, False, True, True]
        assert tier.stats().usage.bytes == 2 * SIZE
        assert tier.stats().usage.evictions == 0


@pytest.fixture
def small() -> Iterator[Server]:
    with valkey("--maxmemory", "12mb", "--maxmemory-policy", "noeviction") as server:
        yield server


async def test_a_server_that_is_out_of_memory_refuses_is_not_broken_and_is_used_again(small: Server) -> None:
    """`OOM command not allowed` is an answer. The capacity is above what the server gives: older objects make room."""
    big = 4000  # layers: 768 KiB
    medium = RemoteMedium(f"redis://127.0.0.1:{small.port}/0")
    bounded = BoundedMedium(medium, 1 << 30)
    tier = Tier("valkey", bounded, WallClock(), TierOptions(timeout_s=30.0, pause_s=0.0))
    written, refused = 0, 0
    deadline_s = time.monotonic() + PATIENCE_S
    for number in range(40):
        while not await tier.put(*packed(number, layers=big)):
            refused += 1
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.01)
        written += 1
    assert written == 40
    assert refused > 0
    stats = tier.stats()
    assert stats.unwritten == {FaultKind.FULL: refused}
    assert (stats.breaker, stats.breaker_opened) == ("closed", 0)
    assert stats.usage.evictions > 0
    assert await tier.get([packed(39, layers=big)[0]]) == [packed(39, layers=big)[1]]
    await tier.close()


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        (("--maxmemory", "50mb", "--maxmemory-policy", "noeviction"), {}, "evicts nothing"),
        (("--maxmemory", "50mb", "--maxmemory-policy", "noeviction"), {"capacity": 1 << 20}, None),
        (("--maxmemory", "50mb", "--maxmemory-policy", "noeviction"), {"capacity": 1 << 30}, "not below the server's"),
        (("--maxmemory", "50mb", "--maxmemory-policy", "volatile-lru"), {"ttl_s": None}, "can evict none"),
        (("--maxmemory", "50mb", "--maxmemory-policy", "volatile-lru"), {}, None),
        (("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"), {}, None),
        ((), {}, "no limit of memory"),
    ],
)
async def test_what_the_servers_own_limit_means_is_said_at_the_start(
    settings: tuple[str, ...], options: dict[str, int | None], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with valkey(*settings) as server:
        medium = RemoteMedium(f"redis://127.0.0.1:{server.port}/0", RemoteOptions(**options))
        tier = Tier("valkey", medium, WallClock())
        await begin(tier)
        assert [said in message for message in caplog.messages] == ([True] if said else [])
        assert tier.stats().notices == (said is not None)
        await tier.close()


async def test_a_server_that_does_not_answer_is_not_judged() -> None:
    with valkey() as server:
        port = server.port
    tier = Tier("valkey", RemoteMedium(f"redis://127.0.0.1:{port}/0"), WallClock())
    assert await notices(tier) is None
    assert tier.stats().notices is None
    await tier.close()


async def test_where_uses_are_counted_the_order_of_times_is_not_needed() -> None:
    """OBJECT IDLETIME is an error under an LFU policy."""
    with valkey("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lfu") as server:
        plain = RemoteMedium(f"redis://127.0.0.1:{server.port}/0")
        objects = several(range(5))
        for address, data in objects.items():
            await plain.write(address, data)
        pages = [one async for page in plain.survey() for one in page]
        assert {(one.key, one.size, one.idle_s) for one in pages} == {(key, SIZE, None) for key in objects}
        await plain.close()


def test_notices_name_the_mend() -> None:
    (one,) = limit_notices(ServerLimits(maxmemory=1 << 30, policy="noeviction"), None, 60.0)
    assert "allkeys-lru" in one
    assert "capacity=SIZE" in one
