"""What tiers were to take and did not, for want of room or because writing failed, is offered again when it is used again."""

import asyncio

import pytest

from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.step_plan import Published
from netgain.serving.engine.storing import Storing
from netgain.serving.tiers.admission import SecondUse
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.kv_store import KVStore
from netgain.serving.tiers.medium import Data, Fault, FaultKind
from netgain.serving.tiers.runner import SameLoop
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import Tier, TierOptions
from tests.serving.engine.recall_executor import RecallExecutor, RecallMemory
from tests.serving.engine.tiered import BLOCK, NAMESPACE, VOCAB

KEY = bytes(range(32))


class FailsOnce(DramMedium):
    """Has no room for what comes first."""

    fails = True

    async def write(self, key: bytes, data: Data) -> None:
        if self.fails:
            self.fails = False
            raise Fault(FaultKind.FULL, "no room on the disk")
        await super().write(key, data)


async def test_a_block_that_could_not_be_written_after_it_was_queued_is_offered_again() -> None:
    memory = RecallMemory(RecallExecutor(4, BLOCK, VOCAB), BLOCK)
    clock, pool = WallClock(), BlockPool(4)
    tier = Tier("dram", FailsOnce(LRU(1 << 20)), clock, TierOptions(pause_s=0.0))
    store = KVStore(Stack([tier], clock), memory.planes, clock, admissions=[SecondUse()])
    storing = Storing(store, memory, pool, SameLoop(), clock, Collector(), block_tokens=BLOCK, room=1 << 20)
    root = store.envelope.root(NAMESPACE, b"")
    [block] = pool.allocate(1)
    pool.publish(block, KEY)
    one = [Published(block, KEY)]
    storing.published(root, one, {})
    offered = []
    for _ in range(3):
        storing.used(root, one)
        offered.append(storing.has_work)
        storing.flush()
        await asyncio.sleep(0)
        await store.settle()
    assert offered == [True, True, False], "the second use fails, the third stores"
    assert len(await tier.keys() or []) == 1


@pytest.mark.parametrize(
    ("room", "queue_bytes", "stored"), [(1 << 20, 1 << 20, True), (0, 1 << 20, False), (1 << 20, 0, False)]
)
async def test_a_block_is_offered_until_a_tier_has_taken_it(room: int, queue_bytes: int, stored: bool) -> None:
    memory = RecallMemory(RecallExecutor(4, BLOCK, VOCAB), BLOCK)
    clock, pool = WallClock(), BlockPool(4)
    tier = Tier("dram", DramMedium(LRU(1 << 20)), clock)
    store = KVStore(Stack([tier], clock, queue_bytes), memory.planes, clock, admissions=[SecondUse()])
    storing = Storing(store, memory, pool, SameLoop(), clock, Collector(), block_tokens=BLOCK, room=room)
    root = store.envelope.root(NAMESPACE, b"")
    [block] = pool.allocate(1)
    pool.publish(block, KEY)
    one = [Published(block, KEY)]
    storing.published(root, one, {})
    assert not storing.has_work, "it waits for a second use"
    for use in range(3):
        storing.used(root, one)
        assert storing.has_work == (use == 0 or not stored)
        storing.flush()
        await asyncio.sleep(0)
        await store.settle()
    assert len(await tier.keys() or []) == stored
