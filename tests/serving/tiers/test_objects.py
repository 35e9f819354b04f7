"""An S3 server that hangs, dies or lacks the bucket never costs more than a bounded wait."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from netgain.errors import UsageError
from netgain.ledger.clock import WallClock
from netgain.serving.tiers.medium import FaultKind
from netgain.serving.tiers.objects import ObjectsMedium
from netgain.serving.tiers.tier import Tier, TierOptions
from tests.serving.tiers.samples import packed
from tests.serving.tiers.servers import Server, s3
from tests.serving.tiers.test_media import s3_options
from tests.waiting import PATIENCE_S

TIMEOUT_S = 1.0
BIG = 4000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3("netgain") as one:
        yield one


def objects_tier(port: int, timeout_s: float, url: str = "s3://netgain") -> Tier:
    options = TierOptions(timeout_s=timeout_s, group=4, open_s=0.1)
    return Tier("s3", ObjectsMedium(url, s3_options(port)), WallClock(), options)


async def test_a_bucket_that_is_not_there_is_a_fault_and_not_a_full_store(server: Server) -> None:
    tier = objects_tier(server.port, 30.0, "s3://elsewhere")
    assert not await tier.put(*packed(1))
    assert tier.stats().unwritten == {FaultKind.UNREACHABLE: 1}
    assert not tier.usable


async def test_hung_then_well_again_then_killed_in_the_middle(server: Server) -> None:
    """One server for the three, since it takes seconds to start."""
    stored = dict(packed(number, layers=BIG) for number in range(24))
    tier = objects_tier(server.port, 30.0)
    for address, data in stored.items():
        assert await tier.put(address, data)

    short = objects_tier(server.port, TIMEOUT_S)
    server.hang()
    began_s = time.monotonic()
    assert await short.get(list(stored)) == [None] * 24
    assert TIMEOUT_S <= time.monotonic() - began_s < TIMEOUT_S + 10
    began_s = time.monotonic()
    for _ in range(20):
        assert await short.get(list(stored)) == [None] * 24
    assert time.monotonic() - began_s < 10 * TIMEOUT_S, "20 of these would have waited"
    server.go_on()
    deadline_s = time.monotonic() + PATIENCE_S
    while not short.usable and time.monotonic() < deadline_s:
        await asyncio.sleep(0.05)
    assert short.usable
    await short.close()

    loading = asyncio.create_task(tier.get(list(stored)))
    while tier.stats().loaded.objects < 4:
        await asyncio.sleep(0)
    server.kill()
    found = await asyncio.wait_for(loading, PATIENCE_S)
    assert any(data is not None for data in found)
    assert found[-1] is None
    assert all(got is None or got == data for got, data in zip(found, stored.values(), strict=True))
    assert not tier.stats().refused
    await tier.close()


def test_a_wrong_address_is_one_clear_error() -> None:
    with pytest.raises(UsageError, match="is no bucket"):
        ObjectsMedium("nonsense")
