"""Speculation by the module that a checkpoint carries: no token changes, and its drafts are those that its formulas give from
fresh hidden states, whatever was cached, cut, preempted or rejected before.

Reported elsewhere: vllm-project/vllm#47930, sgl-project/sglang#19897 (keys missing after a prefix hit),
vllm-project/vllm#14649 (features that were guessed are kept)."""

import asyncio

import pytest
import torch
from safetensors.torch import load_file

from netgain.errors import UsageError
from netgain.ledger.clock import WallClock
from netgain.serving.engine.noise import gumbel
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.runtime.build import build_engine
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM
from tests.serving.model.conftest import write_gguf
from tests.serving.runtime.mtp_checkpoint import add_mtp, reference
from tests.serving.watching import Watching

__all__ = ["write_gguf"]

CLOSE = 0.03  # of logits, whose standard deviation is about 2; hidden states lie in bfloat16 between two passes
PROMPTS = [[1, 5, 256, 40, 9, 77] * 6 + [last] for last in (3, 4, 5)] + [[9, 2]]


@pytest.fixture
def target(tiny):
    """What it says depends above all on the last token, which its module has seen, too: right often and wrong often."""
    model = tiny(family="qwen2", initializer_range=0.08, tie_word_embeddings=True)
    add_mtp(model.folder, layer_scale=0.05)
    return model


def sampled(number) -> SamplingParams:
    """Greedy, this model repeats itself and its module never does."""
    return SamplingParams(max_tokens=30, temperature=1.0, seed=number, ignore_eos=True)


def settings(folder, **changes) -> EngineConfig:
    return EngineConfig.model_validate(
        {
            "model": {"source": str(folder), "dtype": "fp32", "threads": 1},
            "cache": {"kv_tokens": 1024},
            "speculation": {"method": "mtp", "k": 3},
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("changes", "expects"),
    [
        ({}, "cached"),
        ({"scheduler": {"max_batch_tokens": 9, "max_running": 4}}, "chunked"),
        ({"cache": {"kv_tokens": 160, "prefix_caching": False}}, "preempted"),
    ],
)
def test_drafts_made_are_those_of_the_formulas(target, changes, expects):
    watching = []

    def watch(executor):
        watching.append(Watching(executor))
        return watching[0]

    built = build_engine(settings(target.folder, **changes), WallClock(), wrap_executor=watch)
    texts, traces = {}, {}

    async def answer(turn) -> None:
        for number, prompt in enumerate(PROMPTS):
            name = f"{turn}-{number}"
            texts[name] = list(prompt)
            built.engine.submit(Request(id=name, prompt=tuple(prompt), sampling=sampled(number)))
        while built.engine.has_work:
            for output in await built.engine.step():
                texts[output.request_id] += output.tokens
                if output.trace is not None:
                    traces[output.request_id] = output.trace

    for turn in range(2):
        asyncio.run(answer(turn))
    config = built.loaded.config
    embedding = built.loaded.model.embed(torch.arange(config.vocab))
    built.engine.close()
    assert expects != "cached" or any(trace.cached_tokens for trace in traces.values())
    assert expects != "preempted" or any(trace.preemptions for trace in traces.values())
    counts = [trace.drafts for trace in traces.values()]
    assert 0 < sum(sum(one.accepted) for one in counts) < sum(sum(one.drafted) for one in counts)
    weights = load_file(target.folder / "model.safetensors")
    for name, start, tokens in watching[0].seen:
        text = [*texts[name][: start + 1], *tokens[1:]]
        assert text[start] == tokens[0]
        with torch.inference_mode():
            hidden = target.reference.model(torch.tensor(text[:start])[None]).last_hidden_state[0]
        for turn, drafted in enumerate(tokens[1:]):
            embedded = embedding[torch.tensor(text[1 : start + turn + 1])]
            normed = reference(weights, config, hidden.to(torch.bfloat16).float(), embedded)
            with torch.inference_mode():
                logits = target.reference.lm_head(normed[-1])
            place = start + turn + 1
            noisy = logits + torch.from_numpy(gumbel(int(name[2:]), 0, place, range(config.vocab)))
            assert float(noisy.max() - noisy[drafted]) < CLOSE, f"{name}, position {start}, draft {turn}"
            hidden = torch.cat((hidden, normed[-1:]))


@pytest.mark.parametrize("verifier", ["coupled", "rejection", "block"])
def test_no_token_changes(target, verifier):
    """Under sampling the other verifiers keep the law only, so tokens are compared for greedy requests."""
    laws = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3, "frequency_penalty": 0.3}]
    sampling = [
        SamplingParams(max_tokens=60, ignore_eos=True, **law) for law in (laws if verifier == "coupled" else laws[:1])
    ]
    prompts = [*PROMPTS, [7]]
    with LLM(settings(target.folder, speculation={"method": "none"})) as llm:
        alone = [llm.generate([prompt], law)[0].output_ids for prompt in prompts for law in sampling]
    with LLM(settings(target.folder, speculation={"method": "mtp", "k": 3, "verifier": verifier})) as llm:
        for _ in range(2):  # the second time with prefixes from the cache
            answers = llm.generate([prompt for prompt in prompts for _ in sampling], sampling * len(prompts))
            assert [answer.output_ids for answer in answers] == alone
            drafts = [answer.trace.drafts for answer in answers]
            assert sum(sum(one.drafted) for one in drafts) > 0
            assert verifier != "coupled" or sum(sum(one.accepted) for one in drafts) > 0
            assert llm.built.engine.stats().draft_faults == 0
        info = llm.built.info
    assert info["draft"] == "MTP module"
    assert info["draft_kv_token_bytes"] == 64 * 2 + 2 * 2 * 16 * 4


def test_a_model_without_a_module_is_refused(tiny, write_gguf):
    model = tiny(family="qwen2")
    with pytest.raises(UsageError, match=r"carries no MTP module .*netgain draft train"):
        LLM(settings(model.folder))
    with pytest.raises(UsageError, match="needs a Hugging Face folder"):
        LLM(settings(write_gguf(model.reference)))


def test_of_several_modules_the_first_drafts_and_it_is_said(tiny):
    model = tiny(family="qwen2")
    add_mtp(model.folder, modules=3)
    with LLM(settings(model.folder)) as llm:
        assert llm.built.info["draft"] == "the first of 3 MTP modules"


def test_no_draft_is_named_beside_it():
    with pytest.raises(ValueError, match="used by method draft only"):
        EngineConfig.model_validate({"speculation": {"method": "mtp", "draft": "default"}})
