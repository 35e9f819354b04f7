"""KV that comes back from tiers is the KV that was computed, nobody else waits for it, and faults cost time only."""

import asyncio
import random

import pytest

from netgain.ledger.clock import VirtualClock, WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.records import HandoffKind
from netgain.ledger.stage import Stage
from netgain.serving.blocks.scope import Scope
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.pinning import Pinning
from netgain.serving.tiers.runner import OwnThread
from tests.serving.engine.recall_executor import continuation
from tests.serving.engine.tiered import (
    STEP_S,
    VOCAB,
    Bad,
    Served,
    curve,
    make_engine,
    on_virtual_time,
    request,
    shaped,
    text,
)
from tests.waiting import PATIENCE_S, wait_for


async def test_a_prefix_that_comes_back_gives_the_same_tokens() -> None:
    served = Served(make_engine(WallClock(), policy="always"))
    one, again = request("one", text(1, 30)), request("again", text(1, 30))
    await served.run(one)
    await served.settle()
    steps = served.engine.executor.tokens
    await served.run(again)
    assert served.right(one)
    assert served.right(again)
    trace = served.last["again"].trace
    assert (trace.cached_tokens, trace.kv.loaded_tokens) == (28, 28)
    assert served.engine.stats().cached_tokens == 28, "metrics tell what answers and records tell"
    assert served.engine.executor.tokens - steps == 2 + 5, "only what was not loaded is computed"


def test_on_a_thread_of_its_own() -> None:
    engine = make_engine(WallClock(), runner=OwnThread(), policy="always")
    served = Served(engine)
    asyncio.run(served.run(request("one", text(1, 30))))
    answered = engine._tiering._runner.ask(lambda: None, PATIENCE_S)
    assert answered is None

    def stored() -> bool:  # all blocks, not only the first
        counted = engine.tier_counters()
        return bool(counted["tier_stored_bytes/tier0"]) and not counted["tier_queued_bytes/tier0"]

    wait_for(stored)
    engine.scheduler.pool.clear_cache()
    asyncio.run(served.run(request("again", text(1, 30))))
    assert served.kv("again").loaded_tokens == 28
    assert served.right(request("again", text(1, 30)))
    engine.close()
    engine.close()


def test_running_requests_go_on_while_another_loads() -> None:
    clock = VirtualClock()
    engine = make_engine(clock, shaped(clock, 5.0, 1e12), step_s=STEP_S, policy="always")

    async def main(served: Served) -> None:
        await served.run(request("first", text(1, 30)))
        await served.settle()
        begun_s = clock.now()
        await served.run(request("loads", text(1, 30), 2), request("decodes", text(2, 4), 6))
        assert served.ended_s["decodes"] - begun_s == pytest.approx(6 * STEP_S)
        assert served.ended_s["loads"] - begun_s > 10.0
        stages = {interval.stage for interval in served.last["loads"].trace.intervals}
        assert {Stage.CACHE_LOOKUP, Stage.KV_LOAD, Stage.PREFILL, Stage.DECODE} <= stages
        assert served.right(request("loads", text(1, 30), 2))

    on_virtual_time(engine, main)


def test_a_lookup_that_lasts_holds_up_nobody_behind_it() -> None:
    clock = VirtualClock()
    engine = make_engine(clock, shaped(clock, 3.0, 1e12), step_s=STEP_S, policy="always", lookup_s=10.0, running=1)

    async def main(served: Served) -> None:
        await served.run(request("asks", text(1, 30), 2), request("short", text(2, 3), 2))
        assert list(served.ended_s) == ["short", "asks"]

    on_virtual_time(engine, main)


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    clock = VirtualClock()
    engine = make_engine(clock, shaped(clock, 1e6, 1e12), step_s=STEP_S, lookup_s=2.0)

    async def main(served: Served) -> None:
        await served.run(request("asks", text(1, 30), 2))
        assert clock.now() <= 2.0 + 2 * STEP_S
        assert served.kv("asks").why == "no_answer"
        assert served.right(request("asks", text(1, 30), 2))

    on_virtual_time(engine, main)


def test_a_load_that_does_not_come_is_computed_and_what_came_is_used() -> None:
    """sgl-project/sglang#30321: a prefix was committed whose second half had not come; only what came is.
    LMCache/LMCache#3022: buffers that nobody had filled were handed out.
    sgl-project/sglang#40193: a hit was cut without a word; here `failed` says so."""
    clock = VirtualClock()
    medium = shaped(clock, 0.0, 64.0)  # four blocks, 64 bytes of KV and their headers, take seconds
    engine = make_engine(clock, medium, step_s=STEP_S, policy="always", load_s=30.0)

    async def main(served: Served) -> None:
        await served.run(request("first", text(1, 90)))
        await served.settle()
        begun_s = clock.now()
        await served.run(request("late", text(1, 90), 2))
        kv = served.kv("late")
        assert kv.failed
        assert 0 < kv.loaded_tokens < kv.chosen_tokens == 88
        assert clock.now() - begun_s <= 30.0 + 4 * STEP_S
        assert served.right(request("late", text(1, 90), 2))

    on_virtual_time(engine, main)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_request_given_up_while_it_loads_gives_everything_back(turns: int) -> None:
    """LMCache/LMCache#1034: what was found and never loaded stayed pinned."""
    clock = VirtualClock()
    engine = make_engine(clock, shaped(clock, 1.5, 1e12), step_s=STEP_S, policy="always")

    async def main(served: Served) -> None:
        await served.run(request("first", text(1, 30)))
        await served.settle()
        engine.submit(request("gone", text(1, 30)))
        engine.submit(request("stays", text(2, 9), 9))
        for _ in range(turns):
            await served.step()
        assert engine.abort("gone")
        engine.check()
        await served.run()
        assert served.last["gone"].finish_reason == "abort"
        assert served.right(request("stays", text(2, 9), 9))
        await served.settle()
        await served.run(
            request("gone", text(1, 30))
        )  # the name is free, and late arrivals of the first one are nobody's
        assert served.right(request("gone", text(1, 30)))

    on_virtual_time(engine, main)


def test_two_requests_of_one_prefix_load_it_once() -> None:
    clock = VirtualClock()
    collector = Collector()
    engine = make_engine(clock, shaped(clock, 1.0, 1e12), step_s=0.1, policy="always", collector=collector)

    async def main(served: Served) -> None:
        await served.run(request("first", text(1, 30)))
        await served.settle()
        await served.run(request("a", text(1, 30)), request("b", (*text(1, 28), 3)))
        assert (served.kv("a").loaded_tokens, served.kv("b").loaded_tokens) == (28, 0)
        assert served.last["b"].trace.cached_tokens == 28
        assert served.right(request("a", text(1, 30)))
        assert served.right(request("b", (*text(1, 28), 3)))

    on_virtual_time(engine, main)
    loads = [one for one in collector.handoffs if one.kind is HandoffKind.KV_TIER and one.target == "device"]
    used = [one for one in loads if one.used_tokens]
    assert [(one.used_tokens, one.source, one.failed) for one in used] == [(28, "tier0", False)]
    assert sum(one.wasted_tokens for one in loads) == 28, "what came for the other one, too"
    assert engine.tier_counters()["kv_wasted_tokens"] == 28


def test_prefetching_in_the_queue_hides_the_transfer() -> None:
    clock = VirtualClock()
    collector = Collector()
    engine = make_engine(
        clock, shaped(clock, 1.0, 1e12), step_s=STEP_S, policy="always", running=1, collector=collector
    )

    async def main(served: Served) -> None:
        await served.run(request("first", text(1, 30)))
        await served.settle()
        await served.run(request("before", text(2, 5), 12), request("queued", text(1, 30)))
        assert served.kv("queued").loaded_tokens == 28
        assert served.kv("queued").waited_s == 0.0

    on_virtual_time(engine, main)
    (load,) = [one for one in collector.handoffs if one.kind is HandoffKind.KV_TIER and one.target == "device"]
    assert load.hidden_s == pytest.approx(load.busy_s) and load.busy_s > 1.0  # noqa: PT018


@pytest.mark.parametrize(("rate", "why"), [(1e5, "load"), (500.0, "compute")])
def test_the_measured_policy_takes_what_is_sooner_and_says_so(rate: float, why: str) -> None:
    """LMCache/LMCache#3641: loading took 2.5 times as long as computing would have."""
    clock = VirtualClock()
    token_s = 0.05
    engine = make_engine(clock, shaped(clock, 0.001, rate), token_s=token_s, cost=curve(token_s))

    async def main(served: Served) -> None:
        for turn in range(3):
            await served.run(request(f"{turn}", text(1, 90), 1))
            await served.settle()
        kv = served.kv("2")
        assert kv.why == why
        assert kv.full_s == pytest.approx(90 * token_s)
        predicted = kv.warm_s if why == "load" else kv.full_s
        assert kv.actual_s == pytest.approx(predicted, rel=0.15)
        assert all(served.right(request(f"{turn}", text(1, 90), 1)) for turn in range(3))
        # to learn that a link is slow costs at most one of its exchanges
        assert (served.kv("1").loaded_tokens == 88) == (why == "load")

    on_virtual_time(engine, main)


def test_never_stores_and_loads_nothing() -> None:
    clock = VirtualClock()
    engine = make_engine(clock, policy="never")

    async def main(served: Served) -> None:
        await served.run(request("a", text(1, 30)))
        await served.settle()
        await served.run(request("b", text(1, 30)))
        assert served.last["b"].trace.cached_tokens == 0
        assert served.kv("b") is None
        assert engine.tier_counters()["tier_stored_bytes/tier0"] > 0

    on_virtual_time(engine, main)


async def test_another_tenant_finds_nothing() -> None:
    """LMCache/LMCache#2878: the salt separated the engine's own cache and not the external one."""
    served = Served(make_engine(WallClock(), policy="always"))
    await served.run(request("mine", text(1, 30), salt=Scope("a").salt))
    await served.settle()
    await served.run(
        request("yours", text(1, 30), salt=Scope("b").salt), request("again", text(1, 30), salt=Scope("a").salt)
    )
    assert served.kv("yours").found_tokens == 0
    assert served.kv("again").loaded_tokens == 28


@pytest.mark.parametrize(
    ("asked_s", "allowed_s", "kept"), [(600.0, 3600.0, True), (0.0, 3600.0, False), (600.0, 0.0, False)]
)
async def test_a_session_that_asked_is_still_there_after_a_flood(asked_s: float, allowed_s: float, kept: bool) -> None:
    medium = DramMedium(Pinning(LRU(9_000)))
    served = Served(make_engine(WallClock(), medium, policy="always", pin_s=allowed_s))
    await served.run(request("session", text(1, 30), pin_s=asked_s))
    for number in range(2, 12):
        await served.run(request(f"flood{number}", text(number, 30)))
    await served.settle()
    assert medium.usage().evictions > 0
    await served.run(request("back", text(1, 30)))
    assert (served.kv("back").loaded_tokens == 28) == kept


async def test_a_tenant_that_pins_all_it_can_leaves_the_sessions_of_another_their_part() -> None:
    medium = DramMedium(Pinning(LRU(9_000)))
    served = Served(make_engine(WallClock(), medium, policy="always"))
    greedy, modest = Scope("greedy").salt, Scope("modest").salt
    for number in range(6):
        await served.run(request(f"takes{number}", text(number, 30), pin_s=600.0, salt=greedy))
    await served.settle()
    await served.run(request("session", text(50, 30), pin_s=600.0, salt=modest))
    for number in range(6, 20):
        await served.run(request(f"flood{number}", text(number, 30), pin_s=600.0, salt=greedy))
    await served.settle()
    await served.run(request("back", text(50, 30), salt=modest))
    assert served.kv("back").loaded_tokens == 28
    counters = served.engine.tier_counters()
    assert counters["tier_pins_refused/tier0"] > 0
    assert counters["tier_pinned_bytes/tier0"] <= 4_500


async def test_what_is_in_a_slow_tier_is_stored_in_the_fast_one_only() -> None:
    """And it is loaded whole past a fast tier too small for it. sgl-project/sglang#40193: such a hit was cut without a word.
    sgl-project/sglang#33862: a fast tier too small kept everything from the slow one."""
    slow = DramMedium(LRU(1 << 20))
    served = Served(make_engine(WallClock(), DramMedium(LRU(600)), caching_tiers=[slow], policy="always"))
    await served.run(request("a", text(1, 60)))
    await served.settle()
    stored = served.engine.tier_counters()["tier_stored_bytes/tier1"]
    await served.run(request("b", text(1, 60)))
    await served.settle()
    assert served.kv("b").loaded_tokens == 56
    assert served.engine.tier_counters()["tier_stored_bytes/tier1"] - stored < 2 * stored / 10


@pytest.mark.parametrize("layer_groups", [1, 4])
async def test_what_a_tier_could_not_give_is_stored_anew_as_soon_as_it_was_computed(layer_groups: int) -> None:
    spoilt = Bad(WallClock(), 0, 0.0)
    served = Served(make_engine(WallClock(), spoilt, policy="always", layers=4, layer_groups=layer_groups))
    await served.run(request("a", text(1, 30)))
    await served.settle()
    spoilt.all_spoilt = True
    await served.run(request("b", text(1, 30)))
    await served.settle()
    spoilt.all_spoilt = False
    assert served.kv("b").loaded_tokens == 0
    await served.run(request("c", text(1, 30)))
    assert served.kv("c").loaded_tokens == 28
    assert served.right(request("c", text(1, 30)))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("thread", [False, True])
def test_whatever_goes_wrong_no_token_is_wrong(seed: int, thread: bool) -> None:
    """Shared prefixes over a pool that is far too small, chunks, preemptions, drafts, aborts, and a tier that loses, spoils and
    delays what it is given: every answer is the one computed alone, and everything is given back. vllm-project/vllm#31210: wrong
    text from an offloaded cache, under concurrency only."""
    draw = random.Random(seed)
    clock = WallClock()
    engine = make_engine(
        clock,
        Bad(clock, seed, draw.choice([0.0, 0.1, 0.4])),
        runner=OwnThread() if thread else None,
        blocks=draw.choice([26, 40, 80]),
        budget=draw.choice([7, 16, 64]),
        running=draw.choice([2, 5]),
        k=draw.choice([0, 3]),
        policy=draw.choice(["always", "measured"]),
        cost=draw.choice([None, curve(0.001)]),
        layers=draw.choice([1, 4]),
        layer_groups=draw.choice([2, 4]),
        timeout_s=0.05,
        lookup_s=0.2,
        ahead_bytes=draw.choice([0, 200, 1 << 20]),
    )
    served = Served(engine)
    requests = {}

    async def main() -> None:
        for number in range(24):
            length = draw.randrange(1, 60)
            prompt = (*text(draw.randrange(3), length), *text(100 + number, draw.randrange(0, 9)))
            one = request(f"r{number}", prompt, draw.randrange(1, 24))
            requests[one.id] = one
            engine.submit(one)
            for _ in range(draw.randrange(0, 6)):
                if engine.has_work:
                    await served.step()
            if draw.random() < 0.15:
                engine.abort(draw.choice(list(requests)))
            if draw.random() < 0.3:
                engine.scheduler.pool.clear_cache()
        await served.run()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert served.last.keys() == requests.keys()
    for one in requests.values():
        if served.last[one.id].finish_reason == "abort":
            wanted = continuation(one.prompt, len(served.tokens[one.id]), VOCAB)
            assert tuple(served.tokens[one.id]) == wanted
        else:
            assert served.right(one), one.id
    assert engine.scheduler.pool.available == engine.scheduler.pool.blocks
    assert engine._tiering._ahead_bytes == 0
    engine.close()
