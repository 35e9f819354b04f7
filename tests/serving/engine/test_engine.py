import asyncio
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netgain.errors import Overloaded, RequestRejected
from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.stage import Stage
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.replay import replay
from netgain.serving.speculation.verify import CoupledVerifier
from tests.serving.engine.recall_executor import RecallExecutor, continuation

VOCAB = 23
BLOCK = 4
NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n")


def make_engine(*, blocks=64, budget=32, running=8, waiting=64, k=0, caching=True, fail_at=None) -> Engine:
    clock = WallClock()
    scheduler = Scheduler(
        BlockPool(blocks),
        clock,
        block_tokens=BLOCK,
        max_batch_tokens=budget,
        max_running=running,
        max_waiting=waiting,
        max_length=200,
        prefix_caching=caching,
    )
    return Engine(
        executor=RecallExecutor(blocks, BLOCK, VOCAB, fail_at=fail_at),
        scheduler=scheduler,
        namespace=NAMESPACE,
        clock=clock,
        collector=Collector(),
        vocab_size=VOCAB,
        eos_ids=frozenset(),
        proposer=NgramProposer(k=k, lookup_min=1, lookup_max=3) if k else None,
        verifier=CoupledVerifier() if k else None,
        max_drafts=k,
    )


def request(name: str, prompt, max_tokens: int, **fields) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, **fields)
    return Request(id=name, prompt=tuple(prompt), sampling=sampling, received_s=WallClock().now())


async def drain(engine: Engine, tokens=None, last=None):
    tokens = {} if tokens is None else tokens
    last = {} if last is None else last
    for _ in range(20_000):
        if not engine.has_work:
            return tokens, last
        for output in await engine.step():
            tokens.setdefault(output.request_id, []).extend(output.tokens)
            if output.finish_reason:
                assert output.request_id not in last, "a request ended twice"
                last[output.request_id] = output
        engine.check()
    raise AssertionError("the engine does not come to an end")


PROMPTS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 50), st.integers(0, 2)), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(PROMPTS, st.integers(28, 80), st.integers(8, 40), st.integers(0, 5), st.booleans(), st.randoms())
def test_any_schedule_gives_the_text_of_a_lone_request(shapes, blocks, budget, k, caching, rng):
    """Small pools preempt, small budgets chunk, shared heads hit the prefix cache, drafts are rolled back."""
    heads = [[rng.randrange(VOCAB) for _ in range(60)] for _ in range(3)]
    engine = make_engine(blocks=blocks, budget=budget, k=k, caching=caching)
    requests = [
        request(
            f"r{i}", [*heads[head][: length // 2], *(rng.randrange(VOCAB) for _ in range(length - length // 2))], out
        )
        for i, (length, out, head) in enumerate(shapes)
    ]

    async def run():
        tokens, last = {}, {}
        for one in requests:
            engine.submit(one)
            for output in await engine.step() if rng.random() < 0.7 else []:
                tokens.setdefault(output.request_id, []).extend(output.tokens)
                if output.finish_reason:
                    last[output.request_id] = output
            engine.check()
        return await drain(engine, tokens, last)

    tokens, last = asyncio.run(run())
    for one in requests:
        assert tuple(tokens[one.id]) == continuation(one.prompt, one.sampling.max_tokens, VOCAB)
        assert last[one.id].finish_reason == "length"
    assert engine.scheduler.pool.available == blocks
    assert engine.stats().running == engine.stats().waiting == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_abort_at_any_point_leaves_others_unchanged_and_leaks_nothing(seed):
    rng = random.Random(seed)
    engine = make_engine(blocks=40, budget=16, running=3, k=3)
    alive = request("alive", [rng.randrange(VOCAB) for _ in range(30)], 40)
    others = [request(f"x{i}", [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 60))], 40) for i in range(6)]

    async def run():
        tokens: dict[str, list[int]] = {}
        queue = [alive, *others]
        rng.shuffle(queue)
        for one in queue:
            engine.submit(one)
        doomed = [one.id for one in others]
        while engine.has_work:
            if doomed and rng.random() < 0.3:
                engine.abort(doomed.pop())
                engine.check()
            for output in await engine.step():
                tokens.setdefault(output.request_id, []).extend(output.tokens)
            engine.check()
        return tokens

    tokens = asyncio.run(run())
    assert tuple(tokens["alive"]) == continuation(alive.prompt, 40, VOCAB)
    assert engine.scheduler.pool.available == 40


async def test_prefix_hit_computes_only_the_rest():
    engine = make_engine()
    prompt = [i % VOCAB for i in range(41)]
    engine.submit(request("cold", prompt, 1))
    await drain(engine)
    before = engine.executor.tokens
    engine.submit(request("warm", prompt, 1))
    _, last = await drain(engine)
    assert last["warm"].trace.cached_tokens == 40
    assert engine.executor.tokens - before == 1
    assert engine.stats().cached_tokens == 40


@pytest.mark.parametrize("length", [BLOCK, 10 * BLOCK])
async def test_a_wholly_cached_prompt_still_computes_its_last_token(length):
    engine = make_engine()
    prompt = [i % VOCAB for i in range(length)]
    for name in ("cold", "warm"):
        engine.submit(request(name, prompt, 3))
        tokens, last = await drain(engine)
        assert tuple(tokens[name]) == continuation(prompt, 3, VOCAB)
    assert last["warm"].trace.cached_tokens == length - BLOCK


async def test_another_salt_never_hits():
    engine = make_engine()
    prompt = tuple(i % VOCAB for i in range(41))
    for name, salt in (("a", b"a"), ("b", b"b")):
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        engine.submit(Request(id=name, prompt=prompt, sampling=sampling, salt=salt))
        _, last = await drain(engine)
        assert last[name].trace.cached_tokens == 0


async def test_recompute_after_preemption_is_no_cache_hit():
    engine = make_engine(blocks=30, budget=64)
    rng = random.Random(1)
    for i in range(4):
        engine.submit(request(f"r{i}", [rng.randrange(VOCAB) for _ in range(30)], 60))
    _, last = await drain(engine)
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.cached_tokens == 0
    assert stats.prompt_tokens == 4 * 30
    preempted = [output.trace for output in last.values() if output.trace.preemptions]
    assert all(any(i.stage is Stage.PREEMPTED for i in trace.intervals) for trace in preempted)


async def test_impossible_request_is_refused_and_the_next_one_served():
    engine = make_engine(blocks=8)
    with pytest.raises(RequestRejected, match="KV cache holds 32"):
        engine.submit(request("big", [1] * 20, 20))
    with pytest.raises(RequestRejected, match="limit of this model is 200"):
        engine.submit(request("long", [1] * 199, 2))
    for bad in ((), (VOCAB,), (-1,)):
        with pytest.raises(RequestRejected):
            engine.submit(request("bad", bad, 2))
    engine.submit(request("small", [1, 2], 3))
    tokens, _ = await drain(engine)
    assert tuple(tokens["small"]) == continuation([1, 2], 3, VOCAB)


async def test_full_queue_says_retry():
    engine = make_engine(running=1, waiting=1)
    engine.submit(request("a", [1], 5))
    await engine.step()
    engine.submit(request("b", [1], 5))
    with pytest.raises(Overloaded):
        engine.submit(request("c", [1], 5))
    await drain(engine)


async def test_failed_step_ends_its_requests_and_nothing_else():
    engine = make_engine(fail_at=2, running=1)
    engine.submit(request("a", [1], 5))
    engine.submit(request("b", [2], 5))
    tokens, last = await drain(engine)
    assert last["a"].finish_reason == "error"
    assert "fell off the bus" in last["a"].error
    assert tuple(tokens["b"]) == continuation([2], 5, VOCAB)
    assert engine.scheduler.pool.available == 64


@pytest.mark.parametrize("k", [0, 2, 8])
async def test_stop_token_ends_the_output_wherever_it_falls_in_a_block(k):
    prompt = [3, 1, 4, 1, 5]
    whole = continuation(prompt, 60, VOCAB)
    for stop in sorted(set(whole)):
        engine = make_engine(k=k)
        engine.submit(request("r", prompt, 60, stop_token_ids=(stop,)))
        tokens, last = await drain(engine)
        assert tuple(tokens["r"]) == whole[: whole.index(stop) + 1]
        assert last["r"].finish_reason == "stop"
        assert last["r"].trace.output_tokens == len(tokens["r"])


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 33])
@pytest.mark.parametrize("k", [0, 4])
async def test_exactly_max_tokens(max_tokens, k):
    engine = make_engine(k=k)
    engine.submit(request("r", [1, 2, 3], max_tokens))
    tokens, last = await drain(engine)
    assert len(tokens["r"]) == last["r"].trace.output_tokens == max_tokens


async def test_draft_counts_have_the_right_denominators():
    engine = make_engine(k=4)
    engine.submit(request("r", [1, 2, 3], 150))
    _, last = await drain(engine)
    drafts = last["r"].trace.drafts
    assert drafts.steps == sum(sum(histogram) for histogram in drafts.by_length.values()) > 0
    assert all(0 <= a <= d for a, d in zip(drafts.accepted, drafts.drafted, strict=True))
    assert sum(drafts.drafted) == sum(length * sum(h) for length, h in drafts.by_length.items())
    stats = engine.stats()
    assert (stats.drafted_tokens, stats.accepted_tokens) == (sum(drafts.drafted), sum(drafts.accepted))


async def test_stages_tile_a_request():
    engine = make_engine(k=3)
    engine.submit(request("r", [1, 2, 3], 100))
    start = engine._clock.now()
    _, last = await drain(engine)
    trace = last["r"].trace
    from netgain.ledger.timeline import tile

    end = trace.intervals[-1].end_s
    totals = tile(trace.intervals, start, end)
    assert sum(totals.values()) == pytest.approx(end - start)
    assert totals[Stage.VERIFY] > 0
    assert totals[Stage.PREFILL] > 0


async def test_drafts_behind_the_end_of_the_text_are_not_counted_as_accepted():
    """A stop token among accepted drafts: what a replay of the recorded output would count, and no more."""
    prompt = [17, 9, 12, 20, 1, 21, 19, 0, 8, 19, 15, 14, 7, 8]
    engine = make_engine(k=4)
    engine.submit(request("r", prompt, 60, stop_token_ids=(8,)))
    tokens, last = await drain(engine)
    drafts = last["r"].trace.drafts
    assert sum(drafts.accepted) + drafts.steps <= len(tokens["r"])
    replayed = replay(prompt, tokens["r"], NgramProposer(4, 1, 3), max_tokens=60)
    assert replayed.counts == msgspec.structs.replace(drafts, empty=0)


async def test_step_cost_is_measured_when_idle_and_then_splits_own_cost_from_stall():
    engine = make_engine(blocks=200, budget=64)
    engine.submit(request("early", [1, 2, 3], 5))
    with pytest.raises(Overloaded, match="idle"):
        await engine.measure_step_cost(0.2)
    _, last = await drain(engine)
    assert last["early"].trace.own_s is None, "unknown, not zero"
    cost = await engine.measure_step_cost(0.5)
    engine.check()
    assert engine.scheduler.pool.available == 200
    assert cost.subject["weights"] == "w"
    assert {point.batch for point in cost.points} >= {1, 2, 4}
    for name in ("a", "b"):
        engine.submit(request(name, [1, 2, 3], 5))
    _, last = await drain(engine)
    trace = last["b"].trace
    assert trace.own_s >= 0
    assert trace.stall_s >= 0
    assert trace.own_s + trace.stall_s == pytest.approx(
        sum(i.end_s - i.start_s for i in trace.intervals if i.stage in (Stage.PREFILL, Stage.DECODE)), rel=0.5
    )
