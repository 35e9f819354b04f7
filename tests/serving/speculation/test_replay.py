import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.finish import drafts_kept, truncate
from netgain.serving.engine.noise import PositionNoise
from netgain.serving.engine.protocols import Draft, Target
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.replay import ReplayStep, replay
from netgain.serving.speculation.verify import CoupledVerifier
from tests.serving.engine.recall_executor import RecallExecutor
from tests.serving.speculation import asking

STOP = 0
VOCAB = 23


def run(prompt, model, proposer, max_tokens):
    """A step loop over a deterministic `model(text) -> token`: the first token alone, then draft, verify, truncate."""
    text, steps = [*prompt], []
    kept, reason = truncate((model(text),), max_tokens, {STOP})
    text.extend(kept)
    while reason is None:
        remaining = max_tokens - (len(text) - len(prompt))
        draft = asking.draft(proposer, text, remaining - 1) if remaining > 1 else Draft(())
        choices = tuple(model([*text, *draft.tokens[:index]]) for index in range(len(draft.tokens) + 1))
        committed = CoupledVerifier().verify(draft, Target(choices, None), PositionNoise(0, 0), len(text))
        kept, reason = truncate(committed, remaining, {STOP})
        steps.append(ReplayStep(len(draft.tokens), drafts_kept(draft.tokens, kept), len(kept)))
        text.extend(kept)
    return tuple(text[len(prompt) :]), tuple(steps)


def model_from(table):
    return lambda text: table[hash((len(text) % 5, *text[-2:])) % len(table)]


@given(
    prompt=st.lists(st.integers(1, 3), min_size=1, max_size=12),
    table=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    max_tokens=st.integers(1, 30),
    k=st.integers(1, 6),
)
def test_replay_of_a_recording_takes_the_steps_that_the_loop_took(prompt, table, max_tokens, k):
    model = model_from(table)
    output, steps = run(prompt, model, NgramProposer(k, 1, 3), max_tokens)
    plain, _ = run(prompt, model, NgramProposer(k, 1000, 1000), max_tokens)
    assert output == plain
    assert replay(prompt, plain, NgramProposer(k, 1, 3), max_tokens).steps == steps


class Scripted:
    """Proposes fixed drafts in turn and remembers the limits it was given."""

    def __init__(self, *drafts):
        self._drafts = iter(drafts)
        self.limits = []
        self.forgotten = []

    def propose(self, asks):
        (ask,) = asks
        self.limits.append(ask.limit)
        return [Draft(tuple(next(self._drafts))[: ask.limit])]

    def end(self, request, tokens):
        self.forgotten.append(request.id)


def test_a_step_commits_what_was_accepted_and_one_more():
    trace = replay([9], [1, 2, 3, 4, 5, 6, 7], Scripted((2, 3, 8), (5, 8, 8), ()), max_tokens=20)
    assert trace.steps == (ReplayStep(3, 2, 3), ReplayStep(3, 1, 2), ReplayStep(0, 0, 1))
    assert trace.committed == 6


def test_nothing_is_committed_behind_the_end_of_the_recording():
    trace = replay([9], [1, 2, 3], Scripted((2, 3, 8)), max_tokens=20)
    assert trace.steps == (ReplayStep(3, 2, 2),)


def test_drafts_never_reach_past_max_tokens():
    proposer = Scripted((2, 3, 4, 5), (), (), ())
    trace = replay([9], [1, 2, 3, 4], proposer)
    assert proposer.limits == [2]
    assert trace.steps == (ReplayStep(2, 2, 3),)


def test_the_last_allowed_token_is_decoded_without_drafts():
    proposer = Scripted(())
    assert replay([9], [1, 2], proposer).steps == (ReplayStep(0, 0, 1),)
    assert proposer.limits == []


def test_the_first_token_comes_from_the_prompt_and_is_no_step():
    trace = replay([1, 2, 3], [4], Scripted())
    assert trace.steps == ()
    assert trace.committed_per_step is None
    assert replay([1], [], Scripted()).steps == ()


def test_counts_have_the_denominators_of_the_engine():
    trace = replay([9], [1, 2, 3, 4, 5, 6], Scripted((2, 8), (), (5, 6)), max_tokens=50)
    assert trace.steps == (ReplayStep(2, 1, 2), ReplayStep(0, 0, 1), ReplayStep(2, 2, 2))
    counts = trace.counts
    assert counts.steps == 2
    assert counts.drafted == [2, 2]
    assert counts.accepted == [2, 1]
    assert counts.by_length == {2: [0, 1, 1]}
    assert trace.committed_per_step == pytest.approx(5 / 3)


def test_the_proposer_is_left_clean():
    proposer = NgramProposer(4, 1, 2)
    first = replay([1, 2, 1], [2, 1, 2], proposer)
    assert replay([1, 2, 1], [2, 1, 2], proposer) == first
    scripted = Scripted(())
    replay([1], [2, 3, 4], Scripted((), ()))
    replay([1], [2, 3], scripted, max_tokens=9)
    assert scripted.forgotten


def recorded(prompt, k, max_tokens):
    """Output tokens and draft counts of the real engine, alone on a roomy pool."""
    clock, executor = WallClock(), RecallExecutor(blocks=64, block_tokens=4, vocab=VOCAB)
    scheduler = Scheduler(
        BlockPool(64), clock, block_tokens=4, max_batch_tokens=64, max_running=2, max_waiting=2, max_length=200
    )
    engine = Engine(
        executor=executor,
        scheduler=scheduler,
        namespace=Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n"),
        clock=clock,
        collector=Collector(),
        vocab_size=VOCAB,
        eos_ids=frozenset(),
        proposer=NgramProposer(k, 1, 3) if k else None,
        verifier=CoupledVerifier() if k else None,
        max_drafts=k,
    )
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    engine.submit(Request(id="r", prompt=tuple(prompt), sampling=sampling))
    tokens, trace = [], None

    async def run():
        nonlocal trace
        while engine.has_work:
            for output in await engine.step():
                tokens.extend(output.tokens)
                trace = output.trace or trace

    asyncio.run(run())
    return tokens, trace.drafts


@settings(max_examples=40, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    k=st.integers(1, 6),
    max_tokens=st.integers(1, 60),
)
def test_replay_of_a_plain_run_counts_what_the_speculating_engine_counts(prompt, k, max_tokens):
    plain, _ = recorded(prompt, 0, max_tokens)
    tokens, drafts = recorded(prompt, k, max_tokens)
    assert tokens == plain
    assert replay(prompt, plain, NgramProposer(k, 1, 3), max_tokens).counts == msgspec.structs.replace(drafts, empty=0)
