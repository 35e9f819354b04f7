"""Every feature of sampling gives a lone request's tokens and log-probabilities under every schedule."""

import random

import pytest

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.errors import RequestRejected
from netgain.serving.engine import scheduler as scheduling
from netgain.serving.engine.request import SamplingParams
from netgain.serving.speculation.block import BlockVerifier
from netgain.serving.speculation.control import LoadControl
from netgain.serving.speculation.goodput import GoodputControl
from netgain.serving.speculation.suffix import SuffixOptions, SuffixProposer
from netgain.serving.speculation.verify import RejectionVerifier
from tests.serving.engine.features import BLOCK, FEATURES, VOCAB, Answers, alone, make_engine, request, serve


def suffix():
    return SuffixProposer(5, SuffixOptions(factor=2.0))


def by_load():
    return LoadControl({1: 5, 2: 2, 4: 0})


def as_it_pays():
    """Drafts are nearly free here, so that they are verified whenever they stand now and then."""
    points = (StepPoint(batch=b, tokens=t, context=0, seconds=1 + t / 50) for b in (1, 8) for t in range(1, 7))
    curve = StepCost(points=tuple(points))
    return GoodputControl(5, lambda: curve, computed=False)


SCHEDULES = {
    "alone": {},
    "speculating": {"k": 4},
    "chunked": {"budget": 8, "caching": False},
    "preempted": {"blocks": 24, "caching": False},
    "preempted, cached, speculating": {"blocks": 24, "k": 3, "budget": 16},
    "preempted, cached, suffix by load": {"blocks": 24, "k": 5, "budget": 16, "proposer": suffix, "control": by_load},
    "cached, suffix as it pays": {"k": 5, "budget": 16, "proposer": suffix, "control": as_it_pays},
}


def prompts():
    rng = random.Random(4)
    pattern = [rng.randrange(1, VOCAB) for _ in range(5)]
    return [pattern * 5, [rng.randrange(VOCAB) for _ in range(37)], [3], pattern * 2 + [7] * 6]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("feature", FEATURES)
async def test_features_are_the_same_under_every_schedule(feature, schedule):
    """With speculation every returned log-probability was 0.0, and prompt log-probabilities of some were wrong
    (vllm-project/vllm#17876)."""
    parts = {name: part() if callable(part) else part for name, part in SCHEDULES[schedule].items()}
    engine = make_engine(**parts)
    fields = dict(FEATURES[feature])
    if "preempted" in schedule and "min_tokens" not in fields:  # else most end too early for the pool to get full
        fields["ignore_eos"] = True
    requests = [request(f"r{i}", prompt, **fields) for i, prompt in enumerate(prompts())]
    if schedule == "alone":
        answers = Answers()
        for one in requests:
            await serve(engine, [one], answers)
    else:
        answers = await serve(engine, requests)
    for one in requests:
        answers.check(one)
    stats = engine.stats()
    assert bool(stats.preemptions) == ("preempted" in schedule)
    assert stats.drafted_tokens >= stats.accepted_tokens
    assert engine.scheduler.pool.available == engine.scheduler.pool.blocks


async def test_all_features_in_one_batch():
    """Greedy and cut requests in one batch brought a server down (torch-spyre/sendnn-inference#542)."""
    for k in (0, 4):
        engine = make_engine(blocks=200, k=k)
        extremes = [
            {"temperature": 0.9, "seed": 1, **cut}
            for cut in (
                {"top_k": 1},
                {"top_k": VOCAB + 1},
                {"top_k": 10**7},
                {"top_p": 0.0},
                {"top_p": 1e-9},
                {"min_p": 1.0},
                {"min_p": 0.0, "top_p": 1.0},
            )
        ]
        tiny = [{"temperature": temperature} for temperature in (1e-12, 1e-5, 1e-4, 1e-2)]
        fields = [*FEATURES.values(), *extremes, *tiny]
        requests = [request(f"r{i}", prompts()[i % 4], 12, **each) for i, each in enumerate(fields)]
        answers = await serve(engine, requests)
        for one in requests:
            answers.check(one)


@pytest.mark.parametrize("company", [0, 1, 7])
async def test_a_seeded_request_does_not_mind_its_company(company):
    """A seeded request became irreproducible when its batch held an unseeded one (vllm-project/vllm#51226)."""
    seeded = request("seeded", prompts()[1], temperature=0.8, seed=42)
    for settings in ({}, {"budget": 10}, {"blocks": 20}):
        engine = make_engine(**settings)
        others = [
            request(f"o{i}", prompts()[i % 4], temperature=1.2, seed=random.randrange(2**60)) for i in range(company)
        ]
        answers = await serve(engine, [*others[::2], seeded, *others[1::2]])
        answers.check(seeded)


async def test_choices_of_one_seed_differ_and_repeat():
    choices = [request(f"c{i}", prompts()[0], choice=i, temperature=1.0, seed=7) for i in range(6)]
    answers = await serve(make_engine(), choices)
    for one in choices:
        answers.check(one)
    assert len({tuple(answers.tokens[one.id]) for one in choices}) == 6


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("min_tokens", [1, 5, 30])
async def test_no_end_token_stands_before_min_tokens(k, min_tokens):
    eager = {"temperature": 0.7, "logit_bias": ((0, 100.0), (4, 99.0)), "stop_token_ids": (4,)}
    for seed in range(5):
        engine = make_engine(k=k)
        one = request("r", prompts()[0], 40, seed=seed, min_tokens=min_tokens, **eager)
        answers = await serve(engine, [one])
        answers.check(one)
        assert len(answers.tokens["r"]) == min_tokens + 1
        assert answers.last["r"].finish_reason == "stop"


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("prompt_logprobs", [None, 3])
async def test_max_tokens_0_reads_the_prompt_and_says_nothing(prompt_logprobs, cached):
    """A server made several tokens for a limit of 0 (lmstudio-ai/lmstudio-bug-tracker#2335)."""
    engine = make_engine(k=4)
    one = request("r", prompts()[1], 0, prompt_logprobs=prompt_logprobs)
    if cached:
        await serve(engine, [request("before", one.prompt, 2, temperature=0.0)])
    before = engine.stats()
    answers = await serve(engine, [one])
    answers.check(one)
    assert answers.last["r"].trace.output_tokens == 0
    assert answers.last["r"].trace.first_token_s is None
    assert engine.stats().output_tokens == before.output_tokens
    after = await serve(engine, [request("again", one.prompt, 2, temperature=0.0)])
    assert after.last["again"].trace.cached_tokens == len(one.prompt) // BLOCK * BLOCK


@pytest.mark.parametrize("order", [1, -1])
async def test_prompt_logprobs_do_not_depend_on_what_is_cached(order):
    """Over a cached prefix they hit an assertion, or gave leftovers of an earlier request (vllm-project/vllm#3914)."""
    engine = make_engine(blocks=400)
    rng = random.Random(2)
    stem = [rng.randrange(1, VOCAB) for _ in range(48)]
    lengths = [2 * BLOCK - 1, 2 * BLOCK + 1, 3 * BLOCK, 31, 33, 48][::order]
    for turn in range(2):
        for length in lengths:
            one = request(f"{turn}-{length}", stem[:length], 3, temperature=0.0, prompt_logprobs=4, logprobs=1)
            answers = await serve(engine, [one])
            answers.check(one)
            assert answers.last[one.id].trace.cached_tokens == 0
    warm = await serve(engine, [request("plain", stem, 3, temperature=0.0)])
    assert warm.last["plain"].trace.cached_tokens == 44, "their blocks are published as any other"


async def test_scoring_a_long_prompt_is_bounded_in_rows():
    engine = make_engine(blocks=400, budget=10_000)
    engine.scheduler.max_length = 1600
    long = [request(f"r{i}", [(i + j) % VOCAB for j in range(700)], 2, prompt_logprobs=1) for i in range(2)]
    answers = await serve(engine, long)
    assert engine.executor.most_rows <= scheduling.SCORED_PER_STEP + 2
    for one in long:
        answers.check(one)


async def test_prompt_logprobs_survive_a_preemption_in_mid_prompt():
    """The older requests take the blocks of one whose prompt is half scored; nothing is scored twice."""
    engine = make_engine(blocks=30, budget=8, running=3)
    first = [request(f"a{i}", [i + 1, 2, 3], 40, temperature=0.0, ignore_eos=True) for i in range(2)]
    late = request("late", prompts()[1], 5, temperature=0.0, prompt_logprobs=2)
    for one in first:
        engine.submit(one)
    answers = Answers()
    for _ in range(20):
        answers.take(await engine.step())
    answers = await serve(engine, [late], answers)
    for one in (*first, late):
        answers.check(one)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("k", [0, 4])
async def test_nan_logits_end_their_request_and_no_other(feature, k):
    engine = make_engine(k=k, poison={20})
    fields = FEATURES[feature]
    short = request("short", [1, 2, 3], 12, **fields)
    long = request("long", [5] * 15, 30, **{**fields, "min_tokens": 20})
    answers = await serve(engine, [short, long])
    answers.check(short)
    assert answers.last["long"].finish_reason == "error"
    assert "logits" in answers.last["long"].error
    expected, *_ = alone(long)
    got = answers.tokens.get("long", [])
    assert got == expected[: len(got)]
    assert len(got) <= 5


async def test_nan_logits_in_a_scored_prompt_are_an_error():
    engine = make_engine(poison={4})
    answers = await serve(engine, [request("r", [1] * 9, 0, prompt_logprobs=0), request("ok", [1, 2], 1)])
    assert answers.last["r"].finish_reason == "error"
    assert answers.last["ok"].finish_reason in ("length", "stop")


def test_more_prompt_logprobs_than_a_message_may_hold_are_refused():
    engine = make_engine()
    engine.scheduler.max_length = 200_000
    with pytest.raises(RequestRejected, match="limit is 2000000") as caught:
        engine.submit(request("r", [1] * 100_000, 0, prompt_logprobs=20))
    assert caught.value.parameter == "prompt_logprobs"


@pytest.mark.parametrize("verifier", [RejectionVerifier(), BlockVerifier()], ids=["rejection", "block"])
@pytest.mark.parametrize("feature", ["penalties", "sampled penalties", "min_tokens", "everything"])
async def test_sampling_verifiers_obey_the_edits_and_score_what_they_commit(feature, verifier):
    engine = make_engine(k=4, verifier=verifier)
    requests = [request(f"r{i}", prompt, 25, **FEATURES[feature]) for i, prompt in enumerate(prompts())]
    answers = await serve(engine, requests)
    assert engine.stats().drafted_tokens > 0
    for one in requests:
        tokens, params = answers.tokens[one.id], one.sampling
        if params.temperature == 0:
            answers.check(one)
        assert 0 not in tokens[: params.min_tokens]
        if params.logprobs is not None:
            from tests.serving.engine.features import same_scores, scored

            expected = [scored([*one.prompt, *tokens[:i]], tokens[i], params.logprobs) for i in range(len(tokens))]
            same_scores(answers.logprobs[one.id], expected)


def test_sampling_params_are_plain_by_default():
    assert SamplingParams(max_tokens=1) == SamplingParams(max_tokens=1, logit_bias=(), min_p=0.0)
