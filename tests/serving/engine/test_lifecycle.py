"""Aborts, deadlines, priorities and full pools: whatever ends a request, nobody else notices and nothing is lost."""

import asyncio
import math
import random

import pytest

from netgain.errors import RequestRejected
from netgain.ledger.clock import VirtualClock, WallClock
from netgain.ledger.collector import Collector
from netgain.serving.blocks.keys import KeyChain
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.batch import Batch, SegmentResult, StepResult
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.protocols import Draft
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.sequence import Sequence
from netgain.serving.speculation.verify import CoupledVerifier
from tests.serving.engine.features import BLOCK, NAMESPACE, VOCAB, Answers, alone, make_engine, request, serve


class SlowExecutor:
    """Takes a second of its clock per step and always says 1."""

    def __init__(self, clock) -> None:
        self._clock = clock

    async def execute(self, batch: Batch) -> StepResult:
        await self._clock.sleep(1.0)
        return StepResult(tuple(SegmentResult((1,) * segment.rows) for segment in batch.segments))

    def close(self) -> None:
        pass


def timed_engine(clock, *, blocks=64, running=8, budget=64) -> Engine:
    scheduler = Scheduler(
        BlockPool(blocks),
        clock,
        block_tokens=BLOCK,
        max_batch_tokens=budget,
        max_running=running,
        max_waiting=64,
        max_length=200,
    )
    return Engine(
        executor=SlowExecutor(clock),
        scheduler=scheduler,
        namespace=NAMESPACE,
        clock=clock,
        collector=Collector(),
        vocab_size=VOCAB,
        eos_ids=frozenset(),
    )


def timed(name: str, length: int, max_tokens: int, **fields) -> Request:
    return Request(
        id=name,
        prompt=tuple((sum(map(ord, name)) + i) % VOCAB for i in range(length)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        **fields,
    )


def on_virtual_time(engine: Engine, requests) -> list[tuple[str, str, float, int]]:
    """(id, reason, when, tokens) of every request in the order of their ends."""
    clock, ends, counts = engine._clock, [], {}

    async def main() -> None:
        for one in requests:
            engine.submit(one)
        while engine.has_work:
            for output in await engine.step():
                counts[output.request_id] = counts.get(output.request_id, 0) + len(output.tokens)
                if output.finish_reason:
                    ends.append((output.request_id, output.finish_reason, clock.now(), counts[output.request_id]))
            engine.check()

    asyncio.run(run_virtually(clock, main()))
    assert engine.scheduler.pool.available == engine.scheduler.pool.blocks
    return ends


async def run_virtually(clock, main):
    await clock.run(asyncio.ensure_future(main))


def test_a_deadline_ends_a_running_request_at_the_next_step():
    engine = timed_engine(VirtualClock())
    ends = on_virtual_time(engine, [timed("late", 3, 50, deadline_s=4.5), timed("other", 3, 10)])
    assert ends == [("late", "deadline", 6.0, 5), ("other", "length", 10.0, 10)]


def test_a_deadline_ends_a_request_that_waits_at_the_head():
    """The pool is full, so it can never be admitted in time, and it does not block those behind it for ever."""
    engine = timed_engine(VirtualClock(), blocks=16)
    requests = [timed("big", 20, 40), timed("waits", 60, 4, deadline_s=7.0), timed("small", 3, 4)]
    ends = on_virtual_time(engine, requests)
    assert [(name, reason) for name, reason, *_ in ends] == [
        ("waits", "deadline"),
        ("small", "length"),
        ("big", "length"),
    ]
    assert ends[0][2:] == (8.0, 0)


@pytest.mark.parametrize("running", [0, 1])
def test_a_deadline_that_has_passed_before_the_start_costs_no_step(running):
    engine = timed_engine(VirtualClock(10.0), running=1)
    requests = [timed(f"r{i}", 3, 3) for i in range(running)] + [timed("late", 3, 5, deadline_s=9.0)]
    ends = on_virtual_time(engine, requests)
    assert ends[0] == ("late", "deadline", 10.0 + running, 0)
    assert len(ends) == 1 + running


def test_a_finished_request_has_no_deadline_any_more():
    engine = timed_engine(VirtualClock())
    again = [timed("same", 3, 2, deadline_s=3.5)]
    assert on_virtual_time(engine, again) == [("same", "length", 2.0, 2)]
    later = [timed("same", 3, 4, deadline_s=100.0)]
    assert on_virtual_time(engine, later) == [("same", "length", 6.0, 4)]


@pytest.mark.parametrize("deadline_s", [math.nan, math.inf, -math.inf])
def test_a_deadline_is_a_time(deadline_s):
    with pytest.raises(RequestRejected) as caught:
        make_engine().submit(timed("r", 3, 3, deadline_s=deadline_s))
    assert caught.value.parameter == "deadline_s"


def test_lower_priority_values_are_admitted_first_and_equals_in_order_of_arrival():
    engine = timed_engine(VirtualClock(), running=1)
    order = [("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0), ("f", -1)]
    ends = on_virtual_time(engine, [timed(name, 3, 2, priority=priority) for name, priority in order])
    assert [name for name, *_ in ends] == ["c", "f", "a", "e", "b", "d"]


def test_higher_priority_values_lose_their_blocks_first():
    engine = timed_engine(VirtualClock(), blocks=20)
    requests = [timed("old and low", 8, 30, priority=3), timed("a", 8, 30), timed("b", 8, 30)]
    for one in requests:
        one_by_one = engine.submit(one)
        assert one_by_one is None
    preempted: dict[str, int] = {}

    async def main() -> None:
        while engine.has_work:
            for output in await engine.step():
                if output.finish_reason:
                    preempted[output.request_id] = output.trace.preemptions
            engine.check()

    asyncio.run(run_virtually(engine._clock, main()))
    assert preempted["a"] == preempted["b"] == 0
    assert preempted["old and low"] > 0


def test_a_preempted_request_stands_before_later_ones_of_its_priority():
    clock = WallClock()
    pool = BlockPool(8)
    scheduler = Scheduler(
        pool, clock, block_tokens=BLOCK, max_batch_tokens=64, max_running=2, max_waiting=9, max_length=100
    )

    def sequence(name: str, length: int, priority: int = 0) -> Sequence:
        chain = KeyChain(name.encode(), BLOCK)
        chain.extend(range(length))
        return Sequence(name, length, length + 12, chain.keys, priority=priority)

    first, second = sequence("first", 14), sequence("second", 14)
    for one in (first, second):
        scheduler.add(one)
    plan = scheduler.schedule()
    for work in plan.work:
        scheduler.commit(work, 1)
    for one in (sequence("later", 4), sequence("urgent", 4, priority=-1)):
        scheduler.add(one)
    while not plan.preempted:
        plan = scheduler.schedule()
        for work in plan.work:
            scheduler.commit(work, 1)
        scheduler.check()
    assert plan.preempted == (second,)
    assert [one.id for one in scheduler.waiting] == ["urgent", "second", "later"]


@pytest.mark.parametrize("part", range(5))
def test_aborts_at_random_times_hurt_nobody(part):
    """Aborting a request while it was queued, or between two scheduling steps, killed the engine for everybody
    (vllm-project/vllm#52969). 100 timings each, of which some fall into a running step."""
    for number in range(100):
        asyncio.run(abort_somewhen(random.Random(1000 * part + number)))


PAIR = (
    request("a", [3, 1, 4, 1, 5], 12, temperature=0.0, presence_penalty=0.5),
    request("b", [2, 7, 1, 8], 12, temperature=0.9, seed=1, logprobs=1),
)


async def abort_somewhen(rng: random.Random) -> None:
    engine = make_engine(
        running=1 + (rng.random() < 0.3), k=rng.choice((0, 3)), pauses=True, blocks=rng.choice((14, 40))
    )
    first, second = PAIR
    doomed = rng.choice(("b", "b", "a"))
    moment = rng.randrange(34)
    turns = 0
    answers = Answers()

    async def aborting() -> None:
        nonlocal turns
        while turns < moment:
            turns += 1
            await asyncio.sleep(0)
        engine.abort(doomed)
        engine.abort(doomed)
        assert not engine.abort("never submitted")

    engine.submit(first)
    engine.submit(second)
    task = asyncio.create_task(aborting())
    while engine.has_work:
        answers.take(await engine.step())
        engine.check()
        await asyncio.sleep(0)
    await task
    survivor = second if doomed == "a" else first
    answers.check(survivor)
    if answers.last[doomed].finish_reason == "abort":
        expected, *_ = alone(second if doomed == "b" else first)
        got = answers.tokens[doomed]
        assert got == expected[: len(got)]
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.requests_finished) == (0, 0, 2)
    assert engine.scheduler.pool.available == engine.scheduler.pool.blocks


async def test_a_crowd_cancelled_at_once_leaves_nothing():
    engine = make_engine(blocks=40, running=4, pauses=True)
    for number in range(50):
        engine.submit(request(f"r{number}", [number % VOCAB] * 9, 30, temperature=0.0, ignore_eos=True))
    for _ in range(3):
        await engine.step()
    for number in range(50):
        engine.abort(f"r{number}")
    answers = await serve(engine, [])
    assert len(answers.last) == 50
    assert engine.scheduler.pool.available == 40


class SameProposer:
    """Drafts what the request says anyway (or what it never says)."""

    def __init__(self, texts: dict[str, list[int]], wrong: int = 0) -> None:
        self._texts = texts
        self._wrong = wrong

    def propose(self, asks):
        return [Draft(self._drafts(*ask)) for ask in asks]

    def _drafts(self, request, tokens, limit):
        text = self._texts[request.id][len(tokens) : len(tokens) + limit]
        return tuple((token + self._wrong) % VOCAB for token in text)

    def end(self, request, tokens) -> None:
        pass


@pytest.mark.parametrize(("wrong", "rate"), [(0, 1.0), (1, 0.0)])
async def test_acceptance_is_1_for_the_target_itself_and_0_for_a_useless_draft(wrong, rate):
    """It went above 1, and a helper divided by zero before any draft (sgl-project/sglang#11572, vllm-project/vllm#24322)."""
    one = request("r", [3, 1, 4], 40, temperature=0.0, ignore_eos=True, frequency_penalty=0.2)
    expected, *_ = alone(one)
    engine = make_engine(k=4, proposer=SameProposer({"r": [*one.prompt, *expected]}, wrong), verifier=CoupledVerifier())
    assert engine.stats().drafted_tokens == 0
    answers = await serve(engine, [one])
    answers.check(one)
    stats = engine.stats()
    assert stats.drafted_tokens > 0
    assert stats.accepted_tokens / stats.drafted_tokens == rate


@pytest.mark.parametrize("k", range(1, 9))
async def test_an_end_token_in_an_accepted_draft_ends_the_text_at_every_place(k):
    """The whole accepted block was kept, and generation went on behind the end token (huggingface/transformers#47912,
    LostRuins/koboldcpp#1276)."""
    prompt = [3, 1, 4]
    text, *_ = alone(request("r", prompt, 24, temperature=0.0, ignore_eos=True, presence_penalty=2.0))
    ends = {token: at for at, token in reversed(list(enumerate(text)))}  # where each token stands first
    requests = [
        request(f"{end}", prompt, 24, temperature=0.0, ignore_eos=True, presence_penalty=2.0, stop_token_ids=(end,))
        for end in ends
    ]
    proposer = SameProposer({one.id: [*prompt, *text] for one in requests})
    engine = make_engine(k=k, proposer=proposer, verifier=CoupledVerifier())
    answers = await serve(engine, requests)
    for one, at in zip(requests, ends.values(), strict=True):
        answers.check(one)
        assert answers.tokens[one.id] == text[: at + 1]
        assert answers.last[one.id].finish_reason == "stop"
    assert len(ends) > k
    assert engine.stats().output_tokens == sum(map(len, answers.tokens.values()))


async def test_counters_only_rise_whatever_happens():
    """A negative increment to a counter stopped the engine (vllm-project/vllm#6642)."""
    engine = make_engine(blocks=24, k=4, budget=16)
    rng = random.Random(5)
    stem = [rng.randrange(VOCAB) for _ in range(20)]
    for number in range(12):
        engine.submit(
            request(f"r{number}", stem[: rng.randrange(1, 20)], 30, temperature=0.7, seed=number, ignore_eos=True)
        )
    before = engine.stats()
    seen = []
    while engine.has_work:
        if rng.random() < 0.05:
            engine.abort(f"r{rng.randrange(12)}")
        await engine.step()
        after = engine.stats()
        for name in ("steps", "requests_finished", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions"):
            assert getattr(after, name) >= getattr(before, name)
        assert 0 <= after.accepted_tokens <= after.drafted_tokens
        assert before.accepted_tokens <= after.accepted_tokens
        assert after.cached_tokens <= after.prompt_tokens
        before = after
        seen.append(after.preemptions)
    assert before.preemptions > 0


async def test_random_prompts_that_are_preempted_are_no_prefix_hits():
    """Recomputed requests counted as hits, and a queued one was counted again at each retry (vllm-project/vllm#25780)."""
    engine = make_engine(blocks=30, running=8)
    rng = random.Random(6)
    prompts = [[number % VOCAB, number // VOCAB, *(rng.randrange(VOCAB) for _ in range(10))] for number in range(20)]
    answers = await serve(
        engine, [request(f"r{n}", prompt, 30, temperature=0.0, ignore_eos=True) for n, prompt in enumerate(prompts)]
    )
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.cached_tokens == 0
    assert stats.prompt_tokens == sum(map(len, prompts))
    assert sum(output.trace.preemptions for output in answers.last.values()) == stats.preemptions


class BrokenCollector(Collector):
    def step(self, record) -> None:
        raise ValueError("no more room for figures")


async def test_a_fault_in_accounting_is_logged_once_and_serving_goes_on(caplog):
    collector = BrokenCollector()
    engine = make_engine(collector=collector, k=3)
    one = request("r", [3, 1, 4], 20, temperature=0.0)
    answers = await serve(engine, [one])
    answers.check(one)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "no more room for figures" in caplog.text
    assert collector.counters()["steps_unrecorded"] > 1


async def test_prompts_that_differ_in_one_token_never_share_a_block_behind_it():
    """Blocks found by hash alone let a collision reuse another prompt's KV (openvinotoolkit/openvino.genai#3722). Here a key is
    the whole chain's 256-bit BLAKE3, and nothing shorter is ever compared."""
    engine = make_engine(blocks=400)
    prompts = [[number % VOCAB, number // VOCAB, *([7] * 14)] for number in range(50)]
    keys = set()
    for prompt in prompts:
        chain = KeyChain(NAMESPACE.root(b""), BLOCK)
        chain.extend(prompt)
        assert all(len(key) == 32 for key in chain.keys)
        keys.update(chain.keys)
    assert len(keys) == 50 * 4
    for turn in range(2):
        for number, prompt in enumerate(prompts):
            one = request(f"{turn}-{number}", prompt, 4, temperature=0.0)
            answers = await serve(engine, [one])
            answers.check(one)
            assert answers.last[one.id].trace.cached_tokens == (12 if turn else 0)


async def test_what_can_never_fit_is_refused_and_what_grows_ends_as_it_should():
    """A request larger than the whole pool waited at the head for ever and blocked all others (vllm-project/vllm#39734)."""
    engine = make_engine(blocks=32)
    with pytest.raises(RequestRejected, match="KV cache holds 128"):
        engine.submit(request("impossible", [1] * 120, 9))
    with pytest.raises(RequestRejected, match="limit of this model is 300"):
        engine.submit(request("long", [1] * 299, 2, prompt_logprobs=1))
    with pytest.raises(RequestRejected, match="max_tokens"):
        engine.submit(request("endless", [1], 10**9))
    requests = [
        request("grows", [1, 2, 3] * 8, 100, temperature=0.0, ignore_eos=True),
        request("reads", [2] * 128, 0, prompt_logprobs=1),
        request("small", [3], 5, temperature=0.0),
    ]
    answers = await serve(engine, requests)
    for one in requests:
        answers.check(one)
