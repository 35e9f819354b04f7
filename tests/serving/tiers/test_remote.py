"""A Valkey server that is absent, dies, hangs, errs, fills up or comes back never costs more than a bounded wait."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from netgain.errors import UsageError
from netgain.ledger.clock import WallClock
from netgain.serving.tiers.medium import FaultKind
from netgain.serving.tiers.remote import RemoteMedium, RemoteOptions
from netgain.serving.tiers.tier import Tier, TierOptions
from tests.serving.tiers.links import link
from tests.serving.tiers.samples import packed, several
from tests.serving.tiers.servers import Server, valkey
from tests.waiting import PATIENCE_S

TIMEOUT_S = 0.5
BOUND_S = 9.0  # of one wait, on a busy machine; less than 20 waits
BIG = 4000  # layers: 768 KiB an object


@pytest.fixture
def server() -> Iterator[Server]:
    with valkey() as one:
        yield one


def remote(port: int, timeout_s: float = TIMEOUT_S, **options: float) -> Tier:
    medium = RemoteMedium(f"redis://127.0.0.1:{port}/0", RemoteOptions(**options))
    return Tier("valkey", medium, WallClock(), TierOptions(timeout_s=timeout_s, group=4, open_s=0.1))


@contextlib.asynccontextmanager
async def closing(tier: Tier) -> AsyncIterator[Tier]:
    try:
        yield tier
    finally:
        await tier.close()


async def used_again(tier: Tier, address: bytes, data: bytes) -> bool:
    """Whether storing and reading works again, with nobody doing anything about it but asking now and then."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if await tier.put(address, data) and await tier.get([address]) == [data]:
            return True
        await asyncio.sleep(0.1)
    return False


async def test_a_server_that_is_absent_at_the_start_is_used_once_it_is_there(server: Server) -> None:
    """LMCache/LMCache#1491: with Redis not ready at the start every request was stuck."""
    server.kill()
    address, data = packed(1)
    async with closing(remote(server.port)) as tier:
        began_s = time.monotonic()
        for _ in range(50):
            assert await tier.get([address]) == [None]
        assert not await tier.put(address, data)
        assert time.monotonic() - began_s < BOUND_S
        assert tier.stats().unread[FaultKind.UNREACHABLE] >= 1
        assert FaultKind.BREAKER in tier.stats().unread
        server.restart()
        assert await used_again(tier, address, data)


async def test_killed_in_the_middle_of_a_transfer_what_came_is_right_and_the_rest_is_a_miss(server: Server) -> None:
    """kvcache-ai/Mooncake#935: killing the remote garbled answers."""
    objects = dict(packed(number, layers=BIG) for number in range(60))
    async with closing(remote(server.port, timeout_s=20.0)) as tier:
        for address, data in objects.items():
            assert await tier.put(address, data)
        loading = asyncio.create_task(tier.get(list(objects)))
        while tier.stats().loaded.objects < 8:
            await asyncio.sleep(0)
        server.kill()
        found = await asyncio.wait_for(loading, PATIENCE_S)
        assert any(data is not None for data in found)
        assert found[-1] is None
        assert all(got is None or got == data for got, data in zip(found, objects.values(), strict=True))
        assert not tier.stats().refused


async def test_a_hung_server_costs_one_bounded_wait_and_then_nothing_and_is_used_again(server: Server) -> None:
    objects = dict(packed(number, layers=BIG) for number in range(20))
    async with closing(remote(server.port)) as tier:
        for address, data in objects.items():
            assert await tier.put(address, data)
        server.hang()
        began_s = time.monotonic()
        assert await tier.get(list(objects)) == [None] * 20
        assert TIMEOUT_S <= time.monotonic() - began_s < BOUND_S
        began_s = time.monotonic()
        for _ in range(50):
            assert await tier.get(list(objects)) == [None] * 20
        assert not await tier.put(*packed(99))
        assert time.monotonic() - began_s < 10 * TIMEOUT_S, "51 of these would have waited"
        server.go_on()
        assert await used_again(tier, *packed(99))
        assert await tier.get(list(objects)) == list(objects.values())
        assert not tier.stats().refused


async def test_a_restart_between_calls_is_not_noticed(server: Server) -> None:
    """kvcache-ai/Mooncake#4003: one disconnect disabled the remote for the life of the process."""
    async with closing(remote(server.port, timeout_s=20.0)) as tier:
        assert await tier.put(*packed(1))
        server.restart()
        assert await tier.put(*packed(2))
        assert await tier.contains([packed(1)[0], packed(2)[0]]) == [False, True]
        assert not tier.stats().unwritten


async def test_connections_that_died_without_a_word_while_idle_are_replaced_within_the_call(server: Server) -> None:
    """Behind a NAT or firewall that forgets idle connections nothing says that they are gone: each cost the tier."""
    objects = several(range(12))
    async with link(server.port) as between, closing(remote(between.port, timeout_s=2.0)) as tier:
        await asyncio.gather(*(tier.put(address, data) for address, data in objects.items()))
        assert await tier.contains(list(objects)) == [True] * 12
        before = between.accepted
        assert before > 1, "several are pooled"
        await asyncio.sleep(1.2)
        between.silence()
        found = await asyncio.gather(*(tier.get([address]) for address in objects))
        assert found == [[data] for data in objects.values()]
        assert await tier.put(*packed(99))
        assert between.accepted > before
        assert not tier.stats().unread
        assert tier.stats().breaker_opened == 0


async def test_a_call_given_up_in_the_middle_leaves_no_answer_for_the_next(server: Server) -> None:
    """redis/redis-py#2624: after a cancelled command the connection gave its reply to the next one."""
    objects = dict(packed(number, layers=BIG) for number in range(8))
    async with closing(remote(server.port, timeout_s=20.0)) as tier:
        for address, data in objects.items():
            await tier.put(address, data)
        given_up = 0
        for number, (address, data) in enumerate(list(objects.items()) * 5):
            found = await tier.get([address], within_s=0.0003 * (number % 10))
            given_up += found == [None]
            assert await tier.get([address]) == [data]
        assert given_up > 0
        assert not tier.stats().refused
        assert tier.usable


async def test_a_full_server_is_read_but_not_written_for_a_while() -> None:
    """LMCache/LMCache#2787: every store failed and nobody noticed."""
    with valkey("--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as server:
        async with closing(remote(server.port, timeout_s=20.0)) as tier:
            written = 0
            while await tier.put(*packed(written, layers=BIG)):
                written += 1
            assert written > 0
            assert tier.stats().unwritten == {FaultKind.FULL: 1}
            assert not await tier.put(*packed(written))
            assert tier.stats().unwritten == {FaultKind.FULL: 1, FaultKind.PAUSED: 1}
            assert await tier.get([packed(0, layers=BIG)[0]]) == [packed(0, layers=BIG)[1]]


async def test_objects_are_forgotten_after_their_time(server: Server) -> None:
    async with closing(remote(server.port, ttl_s=0.05)) as tier:
        address, data = packed(1)
        assert await tier.put(address, data)
        await asyncio.sleep(0.2)
        assert await tier.get([address]) == [None]


@pytest.mark.parametrize("answer", [b"", b"-ERR not today\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_a_server_that_says_nothing_or_nonsense_is_left_alone(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1024):
                writer.write(answer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with closing(remote(port)) as tier:
        began_s = time.monotonic()
        for number in range(20):
            assert await tier.get([packed(number)[0]]) == [None]
        assert time.monotonic() - began_s < BOUND_S
        assert tier.stats().unread[FaultKind.BREAKER] > 0
    listening.close()
    await listening.wait_closed()


async def test_a_long_list_of_keys_comes_page_by_page(server: Server) -> None:
    """Purging, listing and sweeping a large tier took one exchange, whose bound it broke."""
    medium = RemoteMedium(f"redis://127.0.0.1:{server.port}/0")
    keys = {number.to_bytes(32, "big") for number in range(16_000)}
    await asyncio.gather(*(medium.write(key, b"x") for key in keys))
    await medium.close()
    async with link(server.port, latency_s=0.04) as far, closing(remote(far.port, timeout_s=20.0)) as tier:
        found = await tier.keys()
        assert found is not None
        assert (len(found), set(found)) == (16_000, keys)
        assert far.asked >= 8, "each exchange has the whole bound for itself"
    async with link(server.port, latency_s=10.0) as far, closing(remote(far.port)) as tier:
        assert await tier.keys() is None
        assert tier.usable, "nobody's request waited for it"
        assert tier.stats().other_faults == {FaultKind.TIMEOUT: 1}


async def test_what_others_keep_there_is_not_ours(server: Server) -> None:
    objects = several(range(3))
    async with closing(remote(server.port)) as tier:
        for address, data in objects.items():
            await tier.put(address, data)
        other = RemoteMedium(f"redis://127.0.0.1:{server.port}/0", RemoteOptions(prefix="other:"))
        await other.write(b"\x00" * 32, b"theirs")
        assert sorted(await tier.keys() or []) == sorted(objects)
        await other.close()


@pytest.mark.parametrize(("url", "prefix"), [("nonsense", "a:"), ("redis://127.0.0.1:1/0", "a*")])
def test_a_wrong_address_or_prefix_is_one_clear_error(url: str, prefix: str) -> None:
    with pytest.raises(UsageError, match="is no"):
        RemoteMedium(url, RemoteOptions(prefix=prefix))
