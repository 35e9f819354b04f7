"""Whoever drafts, under the coupled verifier answers are those of a lone request without drafts, to the last bit of their
log-probabilities: batched, chunked, preempted, from cached prefixes, with end tokens inside drafts, penalties and grammars."""

import pytest

from netgain.serving.engine.request import Grammar, SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM
from tests.exactness.test_tiny_models import OUTPUT, VOCAB, random_model

PROMPTS = ([5, 6, 7, 8] * 9, list(range(40, 110)), [7, 11, 9, 11] * 10, [9, 8, 7] * 20)
TWO_TOKENS = ((7, 9.0), (9, 9.0))  # so likely that some drafts of a random head stand, and some do not
FEATURES = {
    "greedy": SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True),
    "bias": SamplingParams(
        max_tokens=OUTPUT, temperature=0.8, seed=2, logit_bias=TWO_TOKENS, ignore_eos=True, logprobs=2
    ),
    "stop token": SamplingParams(
        max_tokens=OUTPUT,
        temperature=0.9,
        seed=5,
        logit_bias=(*TWO_TOKENS, (11, 8.5)),
        stop_token_ids=(11,),
    ),
    "penalties": SamplingParams(
        max_tokens=OUTPUT,
        temperature=0.6,
        seed=3,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias=((7, 5.0), (8, 5.0), (9, 5.0), (VOCAB - 1, 2.0)),
        min_tokens=9,
        logprobs=4,
        prompt_logprobs=2,
    ),
    "cuts": SamplingParams(
        max_tokens=OUTPUT, temperature=1.1, seed=4, top_k=20, top_p=0.9, min_p=0.01, ignore_eos=True
    ),
    "grammar": SamplingParams(
        max_tokens=OUTPUT,
        temperature=0.9,
        seed=5,
        logprobs=0,
        grammar=Grammar(kind="regex", text="[ab]{6,20}(, [ab]+)*"),
    ),
}
DRAFTING = {
    "ngram": {"method": "ngram", "lookup_min": 1},
    "suffix": {"method": "suffix", "suffix": {"factor": 2.0}},
    "draft model": {"method": "draft", "draft_dtype": "int8"},
    "feature head": {"method": "draft"},
    "Medusa heads": {"method": "draft"},
}
HEADS = {"feature head": "feature", "Medusa heads": "medusa"}
TIGHT = {"cache": {"kv_tokens": 176}, "scheduler": {"max_batch_tokens": 11, "max_running": 4}}


@pytest.fixture(scope="module")
def folder(requires_compiler, tmp_path_factory):
    pytest.importorskip("llguidance")
    return random_model(tmp_path_factory.mktemp("target"), "llama")


@pytest.fixture(scope="module")
def alone(folder):
    return answers_alone(folder)


def answers_alone(folder):
    tree = {"model": {"source": str(folder), "threads": 1}, "cache": {"kv_tokens": 1024, "prefix_caching": False}}
    with LLM(EngineConfig.model_validate(tree)) as llm:
        return {
            name: [llm.generate([prompt], sampling)[0] for prompt in PROMPTS] for name, sampling in FEATURES.items()
        }


def drafts_of(name, folder, tmp_path):
    settings = {**DRAFTING[name], "k": 3}
    if name == "draft model":
        settings["draft"] = str(folder)
    elif name in HEADS:
        from tests.serving.runtime.heads import write_head

        write_head(tmp_path / "head", folder, HEADS[name], taps=(0, 1), said=range(0, VOCAB, 1))
        settings["draft"] = str(tmp_path / "head")
    return settings


@pytest.mark.parametrize("name", DRAFTING)
def test_answers_are_those_of_a_lone_request_without_drafts(folder, alone, tmp_path, name):
    check(folder, alone, drafts_of(name, folder, tmp_path))


def test_a_module_of_the_models_own_changes_no_answer(requires_compiler, tmp_path):
    from tests.serving.runtime.mtp_checkpoint import add_mtp

    folder = random_model(tmp_path, "qwen2")
    add_mtp(folder)
    check(folder, answers_alone(folder), {"method": "mtp", "k": 3})


def check(folder, alone, speculation) -> None:
    tree = {
        "model": {"source": str(folder), "threads": 2},
        **TIGHT,
        "speculation": speculation,
    }
    seen = dict.fromkeys(("preempted", "cached", "accepted", "rejected", "ended"), 0)
    with LLM(EngineConfig.model_validate(tree)) as llm:
        for _ in range(2):  # the second time from cached prefixes
            for feature, sampling in FEATURES.items():
                answers = llm.generate(PROMPTS, sampling)
                llm.built.engine.check()
                for answer, lone in zip(answers, alone[feature], strict=True):
                    assert answer.error is None
                    assert answer.output_ids == lone.output_ids, feature
                    assert answer.finish_reason == lone.finish_reason, feature
                    assert answer.logprobs == lone.logprobs, feature
                    assert answer.prompt_logprobs == lone.prompt_logprobs, feature
                    drafts = answer.trace.drafts
                    seen["preempted"] += answer.trace.preemptions
                    seen["cached"] += answer.trace.cached_tokens
                    seen["accepted"] += sum(drafts.accepted)
                    seen["rejected"] += sum(drafts.drafted) - sum(drafts.accepted)
                    seen["ended"] += drafts.ended
    assert min(seen.values()) > 0, f"not everything was exercised: {seen}"


def test_the_features_are_what_they_are_called(alone):
    assert {lone.finish_reason for lone in alone["stop token"]} == {"stop"}
    assert all(11 not in lone.output_ids[:-1] for lone in alone["stop token"])
    assert any(lone.finish_reason == "stop" for lone in alone["penalties"])
    assert all(lone.logprobs for feature in ("bias", "penalties", "grammar") for lone in alone[feature])
