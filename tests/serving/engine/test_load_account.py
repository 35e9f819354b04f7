"""What comes from tiers and is not used is counted as wasted, in tokens and bytes, whenever it comes: in the record as long as
its request runs, and in counters and handoffs always."""

import asyncio

import pytest

from netgain.ledger.clock import VirtualClock
from netgain.ledger.collector import Collector
from netgain.ledger.records import HandoffKind
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU
from tests.serving.engine.tiered import BLOCK, STEP_S, Served, make_engine, on_virtual_time, request, shaped, text


def wasted(collector: Collector) -> tuple[int, int]:
    """Tokens and bytes, by the handoffs."""
    loads = [one for one in collector.handoffs if one.kind is HandoffKind.KV_TIER and one.target == "device"]
    return sum(one.wasted_tokens for one in loads), sum(one.wasted_bytes for one in loads)


def agrees(engine, collector: Collector, tokens: int) -> None:
    """Counters, handoffs and their sums say that so many tokens were wasted."""
    size = tokens // BLOCK * engine._tiering._store.block_bytes
    counters, sums = engine.tier_counters(), collector.counters()
    assert (counters["kv_wasted_tokens"], counters["kv_wasted_bytes"]) == (tokens, size)
    assert wasted(collector) == (tokens, size)
    assert (sums["handoff_wasted_tokens/kv_tier"], sums["handoff_wasted_bytes/kv_tier"]) == (tokens, size)


def test_what_lands_after_its_request_was_given_up_is_wasted() -> None:
    """The engine is idle by then, and hears of it all the same."""
    clock, collector = VirtualClock(), Collector()
    woken = []
    engine = make_engine(clock, shaped(clock, 1.5, 1e12), step_s=STEP_S, policy="always", collector=collector)
    engine.wake_by(lambda: woken.append(clock.now()))

    async def main(served: Served) -> None:
        await served.run(request("first", text(1, 30)))
        await served.settle()
        await served.run()
        engine.submit(request("gone", text(1, 30)))
        await asyncio.sleep(0)
        await clock.sleep(1.6)  # it was looked for, and is on its way
        await served.step()
        assert engine._tiering._loads["gone"].end == 7
        engine.abort("gone")
        await served.run()
        before, told = wasted(collector), len(woken)
        assert before[0] == 4 * BLOCK, "a group had come, and the other is under way"
        assert not engine.has_work
        await clock.sleep(10.0)
        assert len(woken) > told
        assert engine.has_work
        await served.run()

    on_virtual_time(engine, main)
    agrees(engine, collector, 7 * BLOCK)


class Gap(DramMedium):
    """Loses the object that is read `at`-th."""

    def __init__(self, at: int) -> None:
        super().__init__(LRU(1 << 24))
        self.at = -1
        self._gap = at

    async def read(self, keys):
        found = await super().read(keys)
        if self.at < 0:
            return found
        numbered = [None if self.at + number == self._gap else data for number, data in enumerate(found)]
        self.at += len(keys)
        return numbered


@pytest.mark.parametrize(("gap", "used", "lost"), [(0, 0, 3), (1, 1, 2), (5, 5, 1)])
def test_what_came_behind_a_gap_is_wasted(gap: int, used: int, lost: int) -> None:
    """Groups of 4: what came of the group whose block is missing cannot be used without it."""
    clock, collector, medium = VirtualClock(), Collector(), Gap(gap)
    engine = make_engine(clock, medium, step_s=STEP_S, policy="always", collector=collector)

    async def main(served: Served) -> None:
        await served.run(request("first", text(1, 30)))
        await served.settle()
        medium.at = 0
        await served.run(request("again", text(1, 30), 2))
        kv = served.kv("again")
        assert (kv.loaded_tokens, kv.wasted_tokens) == (used * BLOCK, lost * BLOCK)
        assert kv.wasted_bytes == lost * engine._tiering._store.block_bytes
        assert served.right(request("again", text(1, 30), 2))

    on_virtual_time(engine, main)
    agrees(engine, collector, lost * BLOCK)


def test_what_lands_after_a_load_was_given_up_is_in_the_record_of_the_request_that_goes_on() -> None:
    clock, collector = VirtualClock(), Collector()
    engine = make_engine(
        clock, shaped(clock, 4.0, 1e12), step_s=STEP_S, policy="always", collector=collector, load_s=5.0
    )

    async def main(served: Served) -> None:
        await served.run(request("first", text(1, 30)))
        await served.settle()
        await served.run()
        await served.run(request("late", text(1, 30), 12))
        kv = served.kv("late")
        assert kv.failed
        assert kv.loaded_tokens + kv.wasted_tokens == 28
        assert kv.wasted_tokens > 0
        assert kv.bytes == 7 * engine._tiering._store.block_bytes

    on_virtual_time(engine, main)
    agrees(engine, collector, collector.counters()["handoff_wasted_tokens/kv_tier"])
