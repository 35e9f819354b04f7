"""A handoff of a store names the tier that took the blocks, says what was refused and why, and waits until that is known."""

from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.records import Handoff, HandoffKind
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.medium import Data, Fault, FaultKind
from tests.serving.engine.tiered import BLOCK, Served, make_engine, request, text


class Full(DramMedium):
    """Takes the first `room` objects."""

    def __init__(self, room: int) -> None:
        super().__init__(LRU(1 << 24))
        self._room = room

    async def write(self, key: bytes, data: Data) -> None:
        if not self._room:
            raise Fault(FaultKind.FULL, "no room")
        self._room -= 1
        await super().write(key, data)


def stores(collector: Collector) -> list[Handoff]:
    return [one for one in collector.handoffs if one.kind is HandoffKind.KV_TIER and one.source == "device"]


async def stored(*media: DramMedium) -> tuple[list[Handoff], dict[str, float]]:
    """What was told of storing 7 blocks and more, with nothing else left to do."""
    collector = Collector()
    engine = make_engine(WallClock(), media[0], caching_tiers=media[1:], collector=collector)
    served = Served(engine)
    await served.run(request("one", text(1, 30), 2))
    await served.settle()
    assert engine.has_work, "the outcome is to be heard, though no request is there"
    await served.run()
    return stores(collector), engine.tier_counters()


async def test_every_tier_that_took_blocks_is_named() -> None:
    told, _ = await stored(Full(99), Full(99))
    assert {one.target for one in told} == {"tier0", "tier1"}
    for tier in ("tier0", "tier1"):
        of_tier = [one for one in told if one.target == tier]
        assert sum(one.used_tokens for one in of_tier) == 7 * BLOCK
        assert all((one.failed, one.why, one.wasted_tokens) == (False, None, 0) for one in of_tier)


async def test_what_a_tier_refused_is_wasted_and_says_why() -> None:
    told, counters = await stored(Full(99), Full(3))
    first, second = ([one for one in told if one.target == tier] for tier in ("tier0", "tier1"))
    assert sum(one.used_tokens for one in first) == 7 * BLOCK
    assert sum(one.used_tokens for one in second) == 3 * BLOCK
    assert sum(one.wasted_tokens for one in second) == 4 * BLOCK
    assert {reason for one in second if one.why for reason in one.why.split("+")} == {"full", "paused"}
    assert sum(one.wasted_bytes for one in second) == 4 * first[0].bytes // (first[0].used_tokens // BLOCK)
    assert counters["unwritten/tier1/full"] + counters["unwritten/tier1/paused"] == 4


async def test_a_tier_that_took_nothing_is_no_target_that_used_anything() -> None:
    told, _ = await stored(Full(0))
    assert {(one.target, one.used_tokens, one.failed) for one in told} == {("tier0", 0, True)}
    assert sum(one.wasted_tokens for one in told) == 7 * BLOCK
