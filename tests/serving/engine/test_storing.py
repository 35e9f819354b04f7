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
from tests.serving.engine.tiered import BLOCK, NAMESPACE, VOCAB, Served, make_engine, request, text

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
    storing = Storing(
        store, memory, pool, SameLoop(), clock, Collector(), block_tokens=BLOCK, room=1 << 20, at_once=1 << 20
    )
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
    storing = Storing(
        store, memory, pool, SameLoop(), clock, Collector(), block_tokens=BLOCK, room=room, at_once=1 << 20
    )
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


BLOCK_BYTES = BLOCK * 4  # in the memory of the tests' engine


def copies(served: Served) -> list[int]:
    """From now on: how many blocks each copy out of the pool has."""
    memory, counts = served.engine._tiering.storing._memory, []
    read = memory.read_blocks

    def counted(blocks):
        counts.append(len(blocks))
        return read(blocks)

    memory.read_blocks = counted
    return counts


async def test_between_two_steps_no_more_is_copied_than_is_set_and_all_of_it_in_the_end() -> None:
    served = Served(make_engine(WallClock(), policy="always", budget=128, copy_bytes=3 * BLOCK_BYTES + 1))
    counts, by_step = copies(served), []
    first = request("one", text(1, 120), 2)
    served.engine.submit(first)
    while served.engine.has_work:
        before = len(counts)
        await served.step()
        by_step.append(sum(counts[before:]))
    assert max(by_step) == 3, "30 blocks become findable at once"
    assert sum(by_step) == 30
    assert served.right(first)
    await served.settle()
    await served.run(again := request("again", text(1, 120), 2))
    assert served.kv("again").loaded_tokens == 116
    assert served.right(again)
    assert served.engine.tier_counters()["kv_stores_dropped"] == 0


async def test_what_waits_to_be_copied_gives_way_to_requests_and_is_counted() -> None:
    """The pool is too small for both: nobody is preempted or made to wait, and nothing wrong is stored."""
    sizes = {}
    for copy_bytes in (BLOCK_BYTES, 1 << 20):
        served = Served(make_engine(WallClock(), policy="always", blocks=32, budget=128, copy_bytes=copy_bytes))
        steps = []
        for number in range(4):
            one = request(f"request {number}", text(number, 120), 4)
            before = served.engine.executor.steps
            served.engine.submit(one)
            while one.id not in served.last:
                await served.step()
            steps.append(served.engine.executor.steps - before)
            assert served.right(one)
            assert served.last[one.id].trace.preemptions == 0
        while served.engine.has_work:
            await served.step()
        await served.settle()
        dropped = served.engine.tier_counters()["kv_stores_dropped"]
        for number in range(4):
            await served.run(again := request(f"again {number}", text(number, 120), 4))
            assert served.right(again)
        sizes[copy_bytes] = (steps, dropped)
    (few_steps, few_dropped), (all_steps, none_dropped) = sizes.values()
    assert few_steps == all_steps
    assert few_dropped > none_dropped == 0


async def test_what_waits_to_be_copied_is_stored_at_the_end_as_well() -> None:
    medium = DramMedium(LRU(1 << 20))
    served = Served(make_engine(WallClock(), medium, policy="always", budget=128, copy_bytes=1))
    served.engine.submit(one := request("one", text(1, 120), 2))
    while one.id not in served.last:
        await served.step()
    storing = served.engine._tiering.storing
    assert storing.has_work
    storing.drain()
    await asyncio.sleep(0)
    await served.engine._tiering._store.settle()
    assert len([key async for page in medium.pages() for key in page]) == 30
