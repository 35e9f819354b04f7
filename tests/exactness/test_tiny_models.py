"""The same promise on every kernel path, family, stored type and KV type: tiny random models, everything switched on at
once. Windows are shorter than the prompts."""

import json
import re
from pathlib import Path

import pytest

from netgain.serving.engine.request import Grammar, SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM

VOCAB = 300
OUTPUT = 30
PROMPTS = ([5, 6, 7, 8] * 9, list(range(40, 110)), [200], [9, 8, 7] * 20)
SAMPLING = (
    SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True),
    SamplingParams(max_tokens=OUTPUT, temperature=0.7, top_p=0.9, seed=11, ignore_eos=True),
)


# Every byte is a token of this vocabulary (see `model`), so a grammar can be followed; both ends are allowed to fall.
FEATURES = (
    SamplingParams(
        max_tokens=OUTPUT,
        temperature=0.0,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        logit_bias=((7, 1.0), (VOCAB - 1, 0.5)),
        min_tokens=9,
        logprobs=4,
        prompt_logprobs=2,
    ),
    SamplingParams(
        max_tokens=OUTPUT,
        temperature=0.9,
        min_p=0.02,
        frequency_penalty=-0.4,
        seed=5,
        logprobs=0,
        grammar=Grammar(kind="regex", text="[a-d]{6,20}(, [a-d]+)*"),
    ),
    SamplingParams(
        max_tokens=OUTPUT,
        temperature=0.7,
        presence_penalty=0.5,
        seed=8,
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs=1,
    ),
    SamplingParams(max_tokens=0, prompt_logprobs=1),
)


FAMILIES = {
    "llama": {"dtype": "float32", "kv": "bf16"},
    "mistral": {"dtype": "bfloat16", "kv": "fp32", "sliding_window": 21},
    "qwen2": {
        "dtype": "float16",
        "kv": "int8",
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4},
    },
    "qwen3": {
        "dtype": "float32",
        "kv": "fp32",
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 21,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}


@pytest.fixture(scope="module", params=FAMILIES.items(), ids=FAMILIES.keys())
def model(request, tmp_path_factory) -> tuple[Path, str]:
    """Folder and KV type."""
    family, facts = request.param
    return random_model(tmp_path_factory.mktemp("tiny"), family), facts["kv"]


def random_model(path: Path, family: str) -> Path:
    """Grouped heads, odd sizes, untied head; nearly flat logits, so that the smallest change of a bit shows."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(3)
    facts = {name: value for name, value in FAMILIES[family].items() if name != "kv"}
    dtype = getattr(torch, facts.pop("dtype"))
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=VOCAB,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=VOCAB - 1,
        **facts,
    )
    transformers.AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(path)
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    (path / "tokenizer.json").write_text(tokenizer.to_str())
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return path


DRAFTING = {
    "ngram": {"method": "ngram", "lookup_min": 1, "k": 5},
    "suffix by load": {"method": "suffix", "k": 5, "control": "by-load", "k_by_load": {1: 5, 3: 2}},
}


@pytest.mark.parametrize(
    ("kernels", "dtype", "drafts"),
    [
        ("torch", "auto", "ngram"),
        ("compiled", "auto", "ngram"),
        ("compiled", "auto", "suffix by load"),
        ("compiled", "int8", "ngram"),
        ("compiled", "int4", "ngram"),
        ("compiled", "bf16 x bf16", "ngram"),
        ("compiled", "int4 x fp32", "suffix by load"),
        pytest.param("torch", "bf16 x bf16", "ngram", marks=pytest.mark.slow),
        pytest.param("torch", "int4 x fp32", "ngram", marks=pytest.mark.slow),
    ],
)
def test_everything_at_once_equals_alone(request, model, kernels, dtype, drafts):
    """`dtype`: of the weights, with activations other than its own behind an x."""
    folder, kv_dtype = model
    dtype, _, activations = dtype.partition(" x ")
    computing = {"dtype": dtype, "activations": activations or "auto", "kernels": kernels, "kv_dtype": kv_dtype}
    if kernels == "compiled":
        request.getfixturevalue("requires_compiler")
    alone = [[], []]
    tree = {
        "model": {"source": str(folder), "threads": 1, **computing},
        "cache": {"kv_tokens": 1024, "prefix_caching": False},
    }
    with LLM(EngineConfig.model_validate(tree)) as llm:
        for law, sampling in enumerate(SAMPLING):
            alone[law] = [llm.generate([prompt], sampling)[0].output_ids for prompt in PROMPTS]
    tree = {
        "model": {"source": str(folder), "threads": 2, **computing},
        "cache": {"kv_tokens": 176},
        "scheduler": {"max_batch_tokens": 11, "max_running": 4},
        "speculation": DRAFTING[drafts],
    }
    preempted = drafted = cached = 0
    with LLM(EngineConfig.model_validate(tree)) as llm:
        if activations:
            assert llm.built.info["activations"] == activations
            assert llm.built.info["dtype"].endswith(f" x {activations}")
        for law in (0, 1, 0, 1):
            completions = llm.generate(PROMPTS, SAMPLING[law])
            llm.built.engine.check()
            assert [completion.output_ids for completion in completions] == alone[law]
            preempted += sum(completion.trace.preemptions for completion in completions)
            drafted += sum(completion.trace.drafts.steps for completion in completions)
            cached += sum(completion.trace.cached_tokens for completion in completions)
    assert min(preempted, drafted, cached) > 0, "a technique was not exercised"


def test_features_give_the_same_tokens_and_the_same_bits_of_log_probabilities(request, model):
    """Alone, and then chunked, batched, cached, preempted and speculating at once."""
    request.getfixturevalue("requires_compiler")
    pytest.importorskip("llguidance")
    source = {"source": str(model[0]), "kernels": "compiled", "threads": 1, "kv_dtype": model[1]}
    with LLM(
        EngineConfig.model_validate({"model": source, "cache": {"kv_tokens": 1024, "prefix_caching": False}})
    ) as llm:
        alone = [[llm.generate([prompt], sampling)[0] for prompt in PROMPTS] for sampling in FEATURES]
    tree = {
        "model": {**source, "threads": 2},
        "cache": {"kv_tokens": 176},
        "scheduler": {"max_batch_tokens": 11, "max_running": 4},
        "speculation": DRAFTING["suffix by load"],
    }
    preempted = drafted = 0
    with LLM(EngineConfig.model_validate(tree)) as llm:
        for _ in range(2):
            for sampling, expected in zip(FEATURES, alone, strict=True):
                answers = llm.generate(PROMPTS, sampling)
                llm.built.engine.check()
                for answer, lone in zip(answers, expected, strict=True):
                    assert answer.error is None
                    assert (answer.output_ids, answer.finish_reason) == (lone.output_ids, lone.finish_reason)
                    assert answer.logprobs == lone.logprobs
                    assert answer.prompt_logprobs == lone.prompt_logprobs
                    preempted += answer.trace.preemptions
                    drafted += answer.trace.drafts.steps
    assert min(preempted, drafted) > 0, "a technique was not exercised"
    for lone in alone[1]:
        if lone.finish_reason == "stop":
            assert re.fullmatch("[a-d]{6,20}(, [a-d]+)*", lone.text)
    assert all(len(lone.prompt_logprobs) == len(prompt) for lone, prompt in zip(alone[-1], PROMPTS, strict=True))
