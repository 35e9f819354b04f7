"""Whatever keeps the bytes, a tier behaves the same."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from netgain.cost.link import ShapedLink
from netgain.ledger.clock import WallClock
from netgain.serving.tiers.disk import DiskMedium
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.layered import LayeredObject
from netgain.serving.tiers.medium import Medium
from netgain.serving.tiers.object import Reason, pack, unpack_head
from netgain.serving.tiers.objects import ObjectsMedium, ObjectsOptions
from netgain.serving.tiers.remote import RemoteMedium, RemoteOptions
from netgain.serving.tiers.shaped import ShapedMedium
from netgain.serving.tiers.tier import Tier, TierOptions
from tests.serving.tiers.samples import SHAPE, packed, several, stored

ROOM = 1 << 26
TOO_LONG = packed(1)[1] + b"more"


def s3_options(port: int, prefix: str = "netgain-kv") -> ObjectsOptions:
    settings = {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": "us-east-1",
        "access_key_id": "test",
        "secret_access_key": "test",
    }
    return ObjectsOptions(prefix=prefix, settings=settings, allow_http=True)


@pytest.fixture(params=["dram", "disk", "shaped", "valkey", "s3"])
async def tier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tier]:
    def medium() -> Medium:
        match request.param:
            case "dram":
                return DramMedium(LRU(ROOM))
            case "disk":
                return DiskMedium(tmp_path, LRU(ROOM))
            case "shaped":
                down, up = ShapedLink(1e-4, 1e9), ShapedLink(1e-4, 1e9)
                return ShapedMedium(DramMedium(LRU(ROOM)), WallClock(), down, up)
            case "valkey":
                port = request.getfixturevalue("shared_valkey").port
                return RemoteMedium(f"redis://127.0.0.1:{port}/0", RemoteOptions(prefix=f"{uuid4()}:"))
            case _:
                port = request.getfixturevalue("shared_s3").port
                return ObjectsMedium("s3://netgain", s3_options(port, prefix=str(uuid4())))

    made = Tier(request.param, medium(), WallClock(), TierOptions(timeout_s=30.0, group=8))
    yield made
    await made.close()
    await made.close()
    stats = made.stats()
    assert not stats.unread
    assert not stats.unwritten
    assert not stats.other_faults


async def test_what_was_stored_is_read_in_the_order_asked_for(tier: Tier) -> None:
    objects = several(range(20))
    assert all([await tier.put(address, data) for address, data in objects.items()])
    asked = [*reversed(objects), packed(99)[0]]
    found = await tier.get(asked)
    assert [None if data is None else bytes(data) for data in found] == [*reversed(objects.values()), None]
    assert await tier.contains(asked) == [True] * 20 + [False]
    assert sorted(await tier.keys() or []) == sorted(objects)
    heads = await tier.heads(asked)
    assert heads is not None
    assert [None if data is None else unpack_head(data).stored.part.address() for data in heads] == [*asked[:-1], None]
    assert (tier.stats().hits, tier.stats().misses) == (20, 1)


async def test_layers_come_one_group_after_the_other(tier: Tier) -> None:
    kept = [stored(number, layers=30) for number in range(20)]
    for one in kept:
        await tier.put(one.part.address(), pack(one))
    size = 4 * SHAPE.token_bytes
    asked = [LayeredObject(one.part.address(), size) for one in kept]
    missing = LayeredObject(stored(99, layers=30).part.address(), size)
    assert await tier.get_layers([missing], 8) == [None]
    for first, end in ((0, 8), (8, 20), (20, 30)):
        found = await tier.get_layers(asked, end)
        payloads = [bytes(one.payload)[first * size : end * size] for one in kept]
        assert [None if data is None else bytes(data) for data in found] == payloads
    assert [one.whole() for one in asked] == [pack(one) for one in kept]
    assert (tier.stats().hits, tier.stats().misses) == (20, 1)


async def test_what_is_damaged_in_a_late_layer_is_refused_then_and_removed(tier: Tier) -> None:
    one = stored(1, layers=30)
    address, data = one.part.address(), pack(one)
    await tier.put(address, data[:-1] + bytes([data[-1] ^ 1]))
    asked = [LayeredObject(address, 4 * SHAPE.token_bytes)]
    assert await tier.get_layers(asked, 20) != [None]
    assert await tier.get_layers(asked, 30) == [None]
    assert tier.stats().refused == {Reason.DAMAGED: 1}
    assert await tier.contains([address]) == [False]


async def test_nothing_asked_for_is_nothing_found(tier: Tier) -> None:
    assert await tier.get([]) == []
    assert await tier.contains([]) == []
    assert await tier.delete([]) == 0
    assert await tier.keys() == []


async def test_deleted_objects_are_gone(tier: Tier) -> None:
    objects = several(range(4))
    for address, data in objects.items():
        await tier.put(address, data)
    first, *rest = objects
    assert await tier.delete([first, packed(99)[0]]) == 1
    assert await tier.contains([first, *rest]) == [False, True, True, True]
    assert await tier.get([first]) == [None]


async def test_an_object_may_be_stored_twice(tier: Tier) -> None:
    address, data = packed(1)
    for _ in range(2):
        assert await tier.put(address, data)
    (found,) = await tier.get([address])
    assert found == data
    assert await tier.keys() == [address]


@pytest.mark.parametrize(
    ("data", "reason"),
    [(packed(1)[1][:-7], Reason.TORN), (packed(2)[1], Reason.WRONG_KEY), (TOO_LONG, Reason.DAMAGED)],
)
async def test_what_is_refused_can_be_stored_anew(tier: Tier, data: bytes, reason: Reason) -> None:
    """LMCache/LMCache#4991: a failed store left its key visible and every later hit loaded garbage."""
    address, good = packed(1)
    await tier.put(address, data)
    assert await tier.get([address]) == [None]
    assert await tier.contains([address]) == [False]
    assert tier.stats().refused == {reason: 1}
    assert await tier.put(address, good)
    assert await tier.get([address]) == [good]


async def test_a_large_object_arrives_whole(tier: Tier) -> None:
    address, data = packed(5, layers=50_000)
    assert await tier.put(address, data)
    (found,) = await tier.get([address])
    assert found == data
