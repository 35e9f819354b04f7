"""A draft model that says what the target says must have every draft accepted, under every schedule: one token of stale or
missing draft KV would show as a rejection."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.stage import Stage
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.drafting import AsManyAsAllowed
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.model_drafts import DraftLimits, ModelDrafts
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.speculation.verify import CoupledVerifier, RejectionVerifier
from tests.serving.engine.features import FEATURES
from tests.serving.engine.logit_executor import LogitExecutor
from tests.serving.engine.recall_executor import RecallExecutor, continuation

VOCAB = 19
BLOCK = 4
NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n")


def make_engine(
    draft,
    *,
    target=None,
    blocks=64,
    budget=32,
    k=3,
    rows=64,
    context=1000,
    caching=True,
    keeps_guesses=True,
    verifier=None,
    vocab=VOCAB,
    control=None,
) -> Engine:
    clock = WallClock()
    limits = DraftLimits(context=context, vocab=vocab, rows=rows, keeps_guesses=keeps_guesses)
    return Engine(
        executor=target or RecallExecutor(blocks, BLOCK, VOCAB),
        scheduler=Scheduler(
            BlockPool(blocks),
            clock,
            block_tokens=BLOCK,
            max_batch_tokens=budget,
            max_running=8,
            max_waiting=64,
            max_length=200,
            prefix_caching=caching,
        ),
        namespace=NAMESPACE,
        clock=clock,
        collector=Collector(),
        vocab_size=VOCAB,
        eos_ids=frozenset(),
        proposer=ModelDrafts(draft, limits, blocks=blocks, block_tokens=BLOCK),
        verifier=verifier or CoupledVerifier(),
        max_drafts=k,
        control=control,
    )


def request(name: str, prompt, max_tokens: int, **fields) -> Request:
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, **fields})
    return Request(id=name, prompt=tuple(prompt), sampling=sampling, received_s=WallClock().now())


async def answers(engine: Engine, requests, pause=lambda: False) -> dict[str, tuple[int, ...]]:
    said: dict[str, tuple[int, ...]] = {one.id: () for one in requests}
    waiting = list(requests)
    for _ in range(20_000):
        while waiting and not pause():
            engine.submit(waiting.pop(0))
        if not waiting and not engine.has_work:
            return said
        for output in await engine.step():
            assert output.error is None
            said[output.request_id] += output.tokens
        engine.check()
    raise AssertionError("the engine does not come to an end")


SHAPES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 50), st.integers(0, 2)), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(
    shapes=SHAPES,
    blocks=st.integers(28, 80),
    budget=st.integers(8, 40),
    k=st.integers(1, 5),
    rows=st.integers(1, 40),
    caching=st.booleans(),
    keeps_guesses=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_draft_that_equals_the_target_is_never_rejected(
    shapes, blocks, budget, k, rows, caching, keeps_guesses, seed
):
    """Small pools preempt, small budgets chunk, shared heads hit the prefix cache, a small `rows` lets the draft lag."""
    rng = random.Random(seed)
    heads = [[rng.randrange(VOCAB) for _ in range(60)] for _ in range(3)]
    draft = RecallExecutor(blocks, BLOCK, VOCAB)
    engine = make_engine(
        draft, blocks=blocks, budget=budget, k=k, rows=rows, caching=caching, keeps_guesses=keeps_guesses
    )
    requests = [
        request(f"r{i}", [*heads[head][: n // 2], *(rng.randrange(VOCAB) for _ in range(n - n // 2))], out)
        for i, (n, out, head) in enumerate(shapes)
    ]
    said = asyncio.run(answers(engine, requests, lambda: rng.random() < 0.3))
    for one in requests:
        assert said[one.id] == continuation(one.prompt, one.sampling.max_tokens, VOCAB)
    stats = engine.stats()
    assert stats.accepted_tokens == stats.drafted_tokens
    assert engine.scheduler.pool.available == blocks


def test_the_draft_reads_every_token_once():
    draft = RecallExecutor(64, BLOCK, VOCAB)
    engine = make_engine(draft, k=3)
    asyncio.run(answers(engine, [request("a", range(9), 41)]))
    assert engine.stats().accepted_tokens == 30  # 40 tokens behind the first, in steps of 4
    assert draft.tokens == 9 + 40 - 1  # the last token's successor is nobody's guess


def test_a_prefix_that_the_draft_has_read_is_not_read_again():
    draft = RecallExecutor(64, BLOCK, VOCAB)
    engine = make_engine(draft, k=3)
    prompt = [i * i % VOCAB for i in range(41)]
    asyncio.run(answers(engine, [request("a", prompt, 20)]))
    before = draft.tokens
    asyncio.run(answers(engine, [request("b", prompt, 20)]))
    assert draft.tokens - before == 1 + 20 - 2  # of the prompt, only what follows its last full block


def test_who_does_not_speculate_costs_the_draft_nothing():
    draft = RecallExecutor(64, BLOCK, VOCAB)
    engine = make_engine(draft)
    one = request("a", range(9), 20)
    asyncio.run(answers(engine, [Request(id="a", prompt=one.prompt, sampling=one.sampling, speculate=False)]))
    assert draft.tokens == 0
    assert engine.stats().drafted_tokens == 0


class Never(AsManyAsAllowed):
    def limits(self, asks, load):
        return [0] * len(asks)


def test_while_the_control_wants_no_drafts_the_draft_reads_nothing():
    draft = RecallExecutor(64, BLOCK, VOCAB)
    engine = make_engine(draft, control=Never())
    one = request("a", range(9), 20)
    assert asyncio.run(answers(engine, [one]))["a"] == continuation(one.prompt, 20, VOCAB)
    assert draft.steps == 0
    assert engine.stats().drafts_unasked == 18


@pytest.mark.parametrize("feature", FEATURES)
def test_shares_the_targets_noise_and_edits(feature):
    """Temperature, cuts, bias and penalties hold for the draft as for the target, so the same model draws the same token."""
    target, draft = (LogitExecutor(96, BLOCK, VOCAB) for _ in range(2))
    engine = make_engine(draft, target=target, blocks=96, k=4)
    asyncio.run(answers(engine, [request("a", [3, 1, 4, 1, 5, 9], 30, **FEATURES[feature])]))
    stats = engine.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > 0


def test_laws_are_those_the_drafts_were_drawn_from():
    """With q = p rejection sampling accepts everything."""
    target, draft = (LogitExecutor(96, BLOCK, VOCAB) for _ in range(2))
    engine = make_engine(draft, target=target, blocks=96, k=4, verifier=RejectionVerifier())
    asyncio.run(answers(engine, [request("a", [3, 1, 4], 40, temperature=1.0, seed=4)]))
    stats = engine.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > 0


def test_a_draft_that_fails_costs_no_answer():
    engine = make_engine(RecallExecutor(64, BLOCK, VOCAB, fail_at=3))
    one = request("a", range(9), 30)
    assert asyncio.run(answers(engine, [one]))["a"] == continuation(one.prompt, 30, VOCAB)
    stats = engine.stats()
    assert stats.accepted_tokens == stats.drafted_tokens > 0  # and it drafts again
    assert stats.draft_faults == 1


def test_a_draft_whose_logits_are_no_numbers_costs_no_answer():
    target, draft = LogitExecutor(96, BLOCK, VOCAB), LogitExecutor(96, BLOCK, VOCAB, poison={12})
    plain = LogitExecutor(96, BLOCK, VOCAB)
    one = request("a", [3, 1, 4], 30, temperature=0.9, seed=2)
    with_faults = asyncio.run(answers(make_engine(draft, target=target, blocks=96), [one]))
    without = asyncio.run(answers(make_engine(RecallExecutor(96, BLOCK, VOCAB), target=plain, blocks=96), [one]))
    assert with_faults == without


def test_nothing_is_drafted_beyond_the_drafts_context():
    """sgl-project/sglang#6783: a draft model with a shorter context than the target's."""
    draft = RecallExecutor(64, BLOCK, VOCAB)
    engine = make_engine(draft, context=20, k=4)
    one = request("a", range(9), 60)
    assert asyncio.run(answers(engine, [one]))["a"] == continuation(one.prompt, 60, VOCAB)
    assert draft.tokens <= 20


def test_ids_that_the_target_does_not_know_end_a_draft():
    draft = RecallExecutor(64, BLOCK, 10 * VOCAB)
    engine = make_engine(draft)
    one = request("a", range(9), 60)
    assert asyncio.run(answers(engine, [one]))["a"] == continuation(one.prompt, 60, VOCAB)


def test_drafting_is_a_stage_of_its_own():
    class Slow(RecallExecutor):
        async def execute(self, batch):
            await asyncio.sleep(0.002)
            return await super().execute(batch)

    engine = make_engine(Slow(64, BLOCK, VOCAB), k=2)
    seen = []

    async def run():
        engine.submit(request("a", range(9), 30))
        while engine.has_work:
            seen.extend(await engine.step())

    asyncio.run(run())
    trace = seen[-1].trace
    spent = {stage: sum(i.end_s - i.start_s for i in trace.intervals if i.stage is stage) for stage in Stage}
    assert spent[Stage.DRAFT] > 0.002 * 15
    assert spent[Stage.VERIFY] < spent[Stage.DRAFT]
