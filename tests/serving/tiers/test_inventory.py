"""What may not be kept any longer goes from a tier, whether anybody asks for it or not."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from netgain.ledger.clock import VirtualClock, WallClock
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.scope import Scope
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.envelope import Envelope, PlainEnvelope
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.inventory import Silent, keep_clean, outdated, sweep, walk
from netgain.serving.tiers.object import Reason, pack
from netgain.serving.tiers.tier import Tier
from netgain.serving.tiers.vault import Vault
from netgain.serving.tiers.vault_file import destroy_keys
from tests.serving.tiers.samples import packed, stored
from tests.serving.tiers.servers import free_port
from tests.serving.tiers.test_remote import remote

NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n")


async def put(tier: Tier, envelope: Envelope, number: int, tenant: str = "acme") -> bytes:
    one = msgspec.structs.replace(stored(number), root=envelope.root(NAMESPACE, Scope(tenant).salt))
    ready = envelope.wrap(one)
    assert ready is not None
    assert await tier.put(one.part.address(), pack(ready))
    return one.part.address()


async def test_what_is_never_asked_for_again_goes_when_it_is_too_old() -> None:
    clock = VirtualClock(start_s=1000.0)
    tier = Tier("dram", DramMedium(LRU(1 << 20)), clock)

    async def main() -> None:
        envelope = PlainEnvelope(clock.now)
        cleaning = asyncio.ensure_future(keep_clean([tier], outdated(100.0, None, clock.now), clock, every_s=10.0))
        old = await put(tier, envelope, 1)
        await clock.sleep(50.0)
        young = await put(tier, envelope, 2)
        assert await tier.contains([old, young]) == [True, True]
        await clock.sleep(65.0)
        assert await tier.contains([old, young]) == [False, True]
        await clock.sleep(50.0)
        assert await tier.keys() == []
        cleaning.cancel()

    await clock.run(asyncio.ensure_future(main()))


async def test_what_was_sealed_with_a_destroyed_key_goes_and_other_tenants_stay(tmp_path: Path) -> None:
    tier = Tier("dram", DramMedium(LRU(1 << 20)), WallClock())
    vault = Vault(tmp_path / "vault.json")
    for number in range(300):
        await put(tier, vault, number, tenant="acme" if number % 3 else "other")
    assert (await sweep(tier, outdated(None, vault.is_destroyed, lambda: 0.0))).removed == 0
    destroy_keys(tmp_path / "vault.json", frozenset({"acme"}), 1)
    swept = await sweep(tier, outdated(None, vault.is_destroyed, lambda: 0.0))
    assert (swept.looked_at, swept.removed) == (300, 200)
    assert len(await tier.keys() or []) == 100


async def test_damaged_and_misplaced_objects_are_named_by_reason() -> None:
    tier = Tier("dram", DramMedium(LRU(1 << 20)), WallClock())
    await tier.put(packed(1)[0], packed(2)[1])
    await tier.put(packed(3)[0], b"something else")
    await tier.put(packed(4)[0], packed(4)[1])
    found = {one.address: one.refused async for one in walk(tier)}
    assert found == {packed(1)[0]: Reason.WRONG_KEY, packed(3)[0]: Reason.FOREIGN, packed(4)[0]: None}


async def test_a_tier_that_does_not_answer_is_silent_and_not_empty() -> None:
    with pytest.raises(Silent):
        _ = [one async for one in walk(remote(free_port()))]
