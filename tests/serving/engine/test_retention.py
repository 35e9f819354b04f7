"""KV is used for its retention time, counted from when it was first computed, wherever it was meanwhile."""

import pytest

from netgain.ledger.clock import VirtualClock, WallClock
from netgain.serving.tiers.admission import SecondUse
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.object import unpack_head
from tests.serving.engine.tiered import STEP_S, Served, curve, make_engine, on_virtual_time, request, shaped, text

KEPT_S = 100.0
BEGAN_S = 1_700_000_000.0


class Calendar:
    """A clock of the wall that a test sets."""

    def __init__(self) -> None:
        self.now_s = BEGAN_S

    def __call__(self) -> float:
        return self.now_s


def aged(calendar: Calendar, *arguments, **options):
    return make_engine(*arguments, retention_s=KEPT_S, unix_s=calendar, **options)


async def test_the_device_gives_nothing_that_is_older() -> None:
    calendar = Calendar()
    served = Served(aged(calendar, WallClock(), policy="never"))
    found = []
    for number, age_s in enumerate((0.0, KEPT_S - 1, KEPT_S + 1, 2 * KEPT_S, 2 * KEPT_S + 2)):
        calendar.now_s = BEGAN_S + age_s
        one = request(f"request {number}", text(1, 30))
        await served.run(one)
        assert served.right(one)
        found.append(served.last[one.id].trace.cached_tokens)
    assert found == [0, 28, 0, 28, 0], "use makes nothing younger, computing anew does"


async def test_what_a_clock_set_back_dates_in_the_future_is_not_used() -> None:
    calendar = Calendar()
    served = Served(aged(calendar, WallClock(), policy="never"))
    await served.run(request("one", text(1, 30)))
    calendar.now_s -= 1000
    await served.run(request("two", text(1, 30)))
    assert served.last["two"].trace.cached_tokens == 0


@pytest.mark.parametrize("layers", [1, 4])
async def test_what_was_loaded_keeps_its_date_on_the_device(layers: int) -> None:
    calendar = Calendar()
    medium = DramMedium(LRU(1 << 26))
    served = Served(aged(calendar, WallClock(), medium, policy="always", layers=layers, layer_groups=layers))
    await served.run(request("computes", text(1, 30)))
    await served.settle()
    calendar.now_s += KEPT_S - 10
    await served.run(request("loads", text(1, 30)))
    assert served.kv("loads").loaded_tokens == 28
    calendar.now_s += 5
    await served.run(request("finds", text(1, 30)))
    assert served.last["finds"].trace.cached_tokens == 28
    assert served.kv("finds") is None, "no tier was asked"
    calendar.now_s += 10
    last = request("computes again", text(1, 30))
    await served.run(last)
    assert served.right(last)
    assert served.last[last.id].trace.cached_tokens == 0
    assert served.kv(last.id).loaded_tokens == 0


def test_layers_that_come_meanwhile_keep_their_date() -> None:
    calendar, clock = Calendar(), VirtualClock()
    medium = shaped(clock, 0.001, 4e6)
    engine = aged(
        calendar, clock, medium, layers=4, layer_groups=4, budget=256, blocks=128, token_s=0.01, cost=curve(0.01)
    )

    async def main(served: Served) -> None:
        for number in range(5):  # until links and costs are known
            await served.run(request(f"computes {number}", text(number, 60)))
            await served.settle()
            await served.run(request(f"loads {number}", text(number, 60)))
            await served.settle()
        await served.run(request("computes", text(9, 60)))
        await served.settle()
        calendar.now_s += KEPT_S - 5
        await served.run(request("loads", (*text(9, 60), *text(8, 40))))
        assert served.kv("loads").overlapped_tokens > 0
        calendar.now_s += 10
        await served.run(request("computes again", (*text(9, 60), *text(8, 40))))
        assert served.last["computes again"].trace.cached_tokens == 0

    on_virtual_time(engine, main)


async def test_what_a_second_use_stores_is_dated_when_it_was_computed() -> None:
    calendar, medium = Calendar(), DramMedium(LRU(1 << 20))
    served = Served(aged(calendar, WallClock(), medium, policy="always", admissions=[SecondUse()]))
    await served.run(request("one", text(1, 30)))
    calendar.now_s += KEPT_S - 10
    await served.run(request("two", text(1, 30)))
    await served.settle()
    keys = [key async for page in medium.pages() for key in page]
    found = [head for head in await medium.heads(keys) if head is not None]
    assert len(found) == 7
    assert {unpack_head(head).stored.written_s for head in found} == {int(BEGAN_S)}


def test_what_grows_too_old_while_its_request_waits_in_the_queue_is_computed() -> None:
    calendar, clock = Calendar(), VirtualClock()
    engine = aged(calendar, clock, shaped(clock, 0.0, 1e12), running=1, step_s=STEP_S, policy="always")

    async def main(served: Served) -> None:
        await served.run(request("computes", text(1, 30)))
        await served.settle()
        runs, waits = request("runs", text(2, 4), 10), request("waits", text(1, 30), 2)
        engine.submit(runs)
        engine.submit(waits)
        for _ in range(5):
            await served.step()
        assert any(load.arrived[0] for load in engine._tiering._loads.values()), "it was fetched ahead"
        calendar.now_s += KEPT_S + 1
        await served.run()
        assert served.right(waits)
        assert served.kv("waits").loaded_tokens == 0

    on_virtual_time(engine, main)
