"""Requests that use every feature of sampling, and their answers from a loop of a few lines without engine, cache, batch
or drafts."""

import numpy as np

from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.request import Request, SamplingParams, TokenLogprobs
from netgain.serving.engine.sampling import choose
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.verify import CoupledVerifier
from tests.serving.engine.logit_executor import LogitExecutor, logits_after
from tests.serving.engine.test_edits import by_hand

VOCAB = 19
BLOCK = 4
EOS = frozenset({0})
NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n")

FEATURES = {
    "plain": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "seed": 5},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "sampled penalties": {"temperature": 0.8, "seed": 3, "frequency_penalty": -0.6, "top_k": 9, "min_p": 0.05},
    "bias": {"temperature": 0.0, "logit_bias": ((2, 1.5), (5, -100.0), (7, 1.0))},
    "min_tokens": {"temperature": 0.0, "min_tokens": 11, "logit_bias": ((0, 2.0),)},
    "logprobs": {"temperature": 0.7, "seed": 1, "logprobs": 3, "prompt_logprobs": 2},
    "greedy logprobs": {"temperature": 0.0, "logprobs": 0, "prompt_logprobs": 0, "presence_penalty": 1.0},
    "everything": {
        "temperature": 1.1,
        "seed": 11,
        "top_k": 12,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
        "logit_bias": ((0, 1.0), (4, 0.5)),
        "min_tokens": 7,
        "logprobs": 20,
        "prompt_logprobs": 20,
    },
}


def make_engine(
    *,
    blocks=96,
    budget=64,
    running=8,
    k=0,
    caching=True,
    verifier=None,
    proposer=None,
    control=None,
    grammars=None,
    collector=None,
    **executor,
) -> Engine:
    clock = WallClock()
    scheduler = Scheduler(
        BlockPool(blocks),
        clock,
        block_tokens=BLOCK,
        max_batch_tokens=budget,
        max_running=running,
        max_waiting=64,
        max_length=300,
        prefix_caching=caching,
    )
    return Engine(
        executor=LogitExecutor(blocks, BLOCK, VOCAB, **executor),
        scheduler=scheduler,
        namespace=NAMESPACE,
        clock=clock,
        collector=collector or Collector(),
        vocab_size=VOCAB,
        eos_ids=EOS,
        proposer=proposer or (NgramProposer(k=k, lookup_min=1, lookup_max=3) if k else None),
        verifier=(verifier or CoupledVerifier()) if k else None,
        max_drafts=k,
        control=control,
        grammars=grammars,
    )


def request(name: str, prompt, max_tokens=30, *, choice=0, **sampling) -> Request:
    params = SamplingParams(max_tokens=max_tokens, **sampling)
    return Request(id=name, prompt=tuple(prompt), sampling=params, choice=choice, received_s=WallClock().now())


def scored(tokens, token: int, k: int) -> TokenLogprobs:
    logits = logits_after(list(tokens), VOCAB).astype(float)
    values = logits - np.log(np.exp(logits).sum())
    order = sorted(range(VOCAB), key=lambda number: (-values[number], number))[:k]
    return TokenLogprobs(float(values[token]), tuple((number, float(values[number])) for number in order))


def alone(one: Request, allowed=None):
    """(tokens, finish reason, logprobs, prompt logprobs) of a lone request, one token at a time; `allowed(output)` are the
    tokens that a grammar lets stand next."""
    params, output = one.sampling, []
    ends = (frozenset() if params.ignore_eos else EOS) | {*params.stop_token_ids}
    entries = []
    reason = "length"
    while len(output) < params.max_tokens:
        context = [*one.prompt, *output]
        bans = ends if allowed is None else frozenset()
        edited = np.array(by_hand(logits_after(context, VOCAB), params, one.prompt, output, bans), dtype=np.float32)
        if allowed is not None:
            edited[[token for token in range(VOCAB) if token not in allowed(output)]] = -np.inf
        token = choose(edited, params, one.choice, len(context))
        if params.logprobs is not None:
            entries.append(scored(context, token, params.logprobs))
        output.append(token)
        if token in ends:
            reason = "stop"
            break
    prompt = None
    if params.prompt_logprobs is not None:
        k = params.prompt_logprobs
        prompt = [None, *(scored(one.prompt[:at], one.prompt[at], k) for at in range(1, len(one.prompt)))]
    return output, reason, entries, prompt


class Answers:
    """What came back, checked for what every answer promises."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[TokenLogprobs]] = {}
        self.prompt: dict[str, list] = {}
        self.last: dict = {}

    def take(self, outputs) -> None:
        for output in outputs:
            name = output.request_id
            assert name not in self.last, "an output behind the last one"
            self.tokens.setdefault(name, []).extend(output.tokens)
            self.logprobs.setdefault(name, []).extend(output.logprobs)
            if output.prompt_logprobs is not None:
                assert name not in self.prompt, "prompt log-probabilities came twice"
                assert self.tokens[name] == list(output.tokens), "they come with or before the first token"
                self.prompt[name] = list(output.prompt_logprobs)
            if output.finish_reason is not None:
                self.last[name] = output

    def check(self, one: Request, allowed=None) -> None:
        tokens, reason, entries, prompt = alone(one, allowed)
        last = self.last[one.id]
        assert last.error is None
        assert (self.tokens[one.id], last.finish_reason) == (tokens, reason)
        same_scores(self.logprobs[one.id], entries)
        if prompt is None:
            assert one.id not in self.prompt
        else:
            assert self.prompt[one.id][0] is None
            same_scores(self.prompt[one.id][1:], prompt[1:])


def same_scores(actual, expected) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert abs(one.logprob - other.logprob) < 1e-9
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert all(abs(a - b) < 1e-9 for (_, a), (_, b) in zip(one.top, other.top, strict=True))


async def serve(engine: Engine, requests, answers: Answers | None = None) -> Answers:
    answers = answers or Answers()
    for one in requests:
        engine.submit(one)
    for _ in range(20_000):
        if not engine.has_work:
            return answers
        answers.take(await engine.step())
        engine.check()
    raise AssertionError("the engine does not come to an end")
