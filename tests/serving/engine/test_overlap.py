"""The end of a prefix that comes by layers while the suffix is computed: sooner, never at the others' cost, and the tokens are
those of a prefix that was computed, whatever becomes of the layers."""

import asyncio

import pytest

from netgain.ledger.clock import VirtualClock, WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.records import HandoffKind
from netgain.serving.engine.arriving import SHARED_WAIT
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.medium import Fault, FaultKind
from tests.serving.engine.tiered import Served, curve, make_engine, on_virtual_time, request, shaped, text

TOKEN_S = 0.05
PREFIX = 160
PROMPT = (*text(1, PREFIX), *text(2, 40))  # two seconds to compute behind the prefix, ten in all
LAYER_BYTES = 4 * 8192  # of a block, of four
BLOCK_BYTES = 4 * LAYER_BYTES


def engine(clock, medium, groups=4, **options):
    options = {"token_s": TOKEN_S, "cost": curve(TOKEN_S), **options}
    return make_engine(clock, medium, layers=4, layer_groups=groups, budget=256, blocks=128, **options)


class Faulty(DramMedium):
    """`fault(start, data)` spoils what is read by ranges, once it is set."""

    def __init__(self) -> None:
        super().__init__(LRU(1 << 24))
        self.fault = None

    async def ranges(self, wanted):
        found = await super().ranges(wanted)
        if self.fault is None:
            return found
        return [await self.fault(one.start, data) for one, data in zip(wanted, found, strict=True)]


async def store(served: Served, rounds: int = 2) -> None:
    """The prefix is in the tier, and its link is known."""
    for turn in range(rounds):
        await served.run(request(f"stores{turn}", (*text(1, PREFIX), turn), 1))
        await served.settle()


def warm_s(rate: float, groups: int) -> tuple[float, float, float, int]:
    """From admission to the first token: the truth, its prediction, what the prediction takes as hidden, and the tokens that came
    by layers."""
    clock = VirtualClock()
    one = engine(clock, shaped(clock, 0.001, rate), groups)

    async def main(served: Served) -> None:
        await store(served, 3)
        await served.run(request("warm", PROMPT, 1))
        assert served.right(request("warm", PROMPT, 1))
        kv = served.kv("warm")
        assert (
            kv.loaded_tokens == kv.chosen_tokens >= 0.9 * PREFIX
        )  # of the last blocks, either is as soon at some rates

    kv = on_virtual_time(one, main).kv("warm")
    assert kv.actual_s is not None
    return kv.actual_s, kv.warm_s, kv.hidden_s, kv.overlapped_tokens


@pytest.mark.parametrize("transfer_s", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("groups", [2, 4])
def test_transfer_and_suffix_overlap_as_predicted(transfer_s: float, groups: int) -> None:
    rate = PREFIX / 4 * BLOCK_BYTES / transfer_s
    apart_s, apart_predicted_s, nothing_s, none = warm_s(rate, 1)
    overlapped_s, predicted_s, hidden_s, tokens = warm_s(rate, groups)
    assert (nothing_s, none) == (0.0, 0)
    assert tokens > 0
    assert hidden_s > 0
    assert apart_s == pytest.approx(apart_predicted_s, rel=0.1)
    assert overlapped_s == pytest.approx(predicted_s, rel=0.15)
    assert overlapped_s < apart_s - 0.5 * hidden_s


def test_layers_that_take_longer_than_whole_blocks_are_given_up() -> None:
    """To hide a transfer gains nothing where by layers it takes as much longer: after a few, blocks come whole."""
    clock = VirtualClock()
    medium = Faulty()
    one = engine(clock, shaped(clock, 0.001, PREFIX / 4 * BLOCK_BYTES / 1.0, medium), policy="always")

    async def slow(start: int, data):
        await clock.sleep(0.02)  # for every block, of each group
        return data

    async def main(served: Served) -> None:
        await store(served, 3)
        medium.fault = slow
        for turn in range(6):
            served.engine.scheduler.pool.clear_cache()
            await served.run(request(f"warm{turn}", PROMPT, 1))
            assert served.right(request(f"warm{turn}", PROMPT, 1))
            assert served.kv(f"warm{turn}").loaded_tokens >= PREFIX
        by_layers = [served.kv(f"warm{turn}").overlapped_tokens for turn in range(6)]
        assert by_layers[0] > 0, "tried"
        assert by_layers[-1] == 0

    on_virtual_time(one, main)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
@pytest.mark.parametrize("how", ["flipped", "truncated", "gone", "dead"])
def test_layers_that_do_not_come_right_are_computed(fails_at: int, how: str) -> None:
    """sgl-project/sglang#30321, of layers: nothing of a block is used, or found by others, of which a layer is missing."""
    clock = VirtualClock()
    medium = Faulty()
    link = shaped(clock, 0.001, PREFIX / 4 * BLOCK_BYTES / 1.5, medium)
    one = engine(clock, link, timeout_s=3.0)

    async def fault(start: int, data):
        if start < fails_at * LAYER_BYTES:
            return data
        match how:
            case "flipped":
                return bytes([data[0] ^ 4]) + bytes(data[1:])
            case "truncated":
                return data[: len(data) // 2]
            case "gone":
                return None
        raise Fault(FaultKind.UNREACHABLE, "the reader was killed")

    async def main(served: Served) -> None:
        await store(served, 3)
        medium.fault = fault
        begun_s = clock.now()
        await served.run(request("warm", PROMPT, 6))
        assert served.right(request("warm", PROMPT, 6))
        kv = served.kv("warm")
        assert kv.failed
        assert kv.loaded_tokens < kv.chosen_tokens
        assert kv.overlapped_tokens == 0
        # at worst a wait for what does not come, a pass for nothing, and everything computed
        assert clock.now() - begun_s < 3.0 + 2.0 + len(PROMPT) * TOKEN_S + 6 * TOKEN_S
        medium.fault = None
        served.engine.scheduler.check()
        await served.run(request("after", PROMPT, 6))
        assert served.right(request("after", PROMPT, 6))

    on_virtual_time(one, main)


def test_a_link_that_becomes_slow_holds_up_the_others_no_longer_than_allowed() -> None:
    clock = VirtualClock()
    medium = Faulty()
    link = shaped(clock, 0.001, PREFIX / 4 * BLOCK_BYTES / 1.0, medium)
    collector = Collector()
    one = engine(clock, link, collector=collector)

    async def late(start: int, data):
        if start > 0:
            await clock.sleep(0.3)  # for every block
        return data

    async def main(served: Served) -> None:
        await store(served, 3)
        served.engine.submit(request("decodes", text(3, 4), 60))
        await served.step()
        medium.fault = late
        await served.run(request("warm", PROMPT, 2))
        assert served.right(request("warm", PROMPT, 2))
        assert served.right(request("decodes", text(3, 4), 60))
        pass_s = (len(PROMPT) - PREFIX) * TOKEN_S
        for step in collector.steps:
            computed_s = TOKEN_S * sum(share.prefill_tokens + share.decode_tokens for share in step.shares)
            if len(step.shares) > 1:
                assert step.finished_s - step.started_s < computed_s + pass_s * SHARED_WAIT + 0.01

    on_virtual_time(one, main)
    assert one.tier_counters().get("kv_overlaps_late", 0) <= 1


def test_another_request_of_the_prefix_waits_for_the_layers_too() -> None:
    clock = VirtualClock()
    collector = Collector()
    one = engine(clock, shaped(clock, 0.001, PREFIX / 4 * BLOCK_BYTES / 1.5), collector=collector)

    async def main(served: Served) -> None:
        await store(served, 3)
        first, second = request("first", PROMPT, 3), request("second", (*text(1, PREFIX), *text(4, 9)), 3)
        await served.run(first, second)
        assert served.right(first)
        assert served.right(second)
        assert served.kv("first").overlapped_tokens > 0
        assert served.last["second"].trace.cached_tokens == PREFIX
        assert served.kv("second").loaded_tokens == 0

    on_virtual_time(one, main)
    loads = [one for one in collector.handoffs if one.kind is HandoffKind.KV_TIER and one.target == "device"]
    assert loads[-1].hidden_s == pytest.approx(loads[-1].busy_s - loads[-1].waited_s)
    assert loads[-1].hidden_s > 0.2  # both are fetched ahead, over one link


@pytest.mark.parametrize("after_s", [0.1, 0.6, 1.2, 2.0])
def test_a_request_given_up_while_its_layers_arrive_gives_everything_back(after_s: float) -> None:
    clock = VirtualClock()
    one = engine(clock, shaped(clock, 0.001, PREFIX / 4 * BLOCK_BYTES / 1.5))

    async def main(served: Served) -> None:
        await store(served, 3)

        async def give_up() -> None:
            await clock.sleep(after_s)
            assert one.abort("gone")

        giving_up = asyncio.ensure_future(give_up())
        await served.run(request("gone", PROMPT, 90), request("stays", text(3, 9), 5))
        await giving_up
        assert served.last["gone"].finish_reason == "abort"
        assert served.right(request("stays", text(3, 9), 5))
        await served.settle()
        await served.run(request("back", PROMPT, 3))
        assert served.right(request("back", PROMPT, 3))

    on_virtual_time(one, main)


async def test_without_a_prediction_all_of_a_prefix_comes_whole() -> None:
    served = Served(make_engine(WallClock(), layers=4, layer_groups=4, policy="always"))
    await served.run(request("stores", PROMPT))
    await served.settle()
    await served.run(request("warm", PROMPT))
    assert served.right(request("warm", PROMPT))
    assert served.kv("warm").overlapped_tokens == 0
