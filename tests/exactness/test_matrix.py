"""Token-identical techniques give the tokens of a lone, plain request: on the real default model, greedy and seeded."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM, Completion
from tests.waiting import PATIENCE_S

OUTPUT = 40
SAMPLING = {
    "greedy": SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True),
    "seeded": SamplingParams(max_tokens=OUTPUT, temperature=0.8, top_k=50, top_p=0.95, seed=1234, ignore_eos=True),
}
NEIGHBOUR = SamplingParams(max_tokens=OUTPUT, temperature=1.3, seed=7, ignore_eos=True)
CODE = "def area(width, height):\n    return width * height\n\nprint(area(3, 4))\n"
PROMPTS = (
    f"<|im_start|>user\nRepeat this code exactly:\n{CODE}<|im_end|>\n<|im_start|>assistant\n{CODE[:30]}",
    "<|im_start|>user\nWhy is the sky blue in the morning?<|im_end|>\n<|im_start|>assistant\n",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,",
)
NEIGHBOURS = ("Once upon a time", "The recipe needs two eggs and", "SELECT name FROM users WHERE")


def engine(default_model_path, **changes) -> LLM:
    """`changes` are settings by their dotted name, with __ for the dot; activations other than a dtype's own stand behind it:
    "auto x fp32"."""
    tree: dict = {"model": {"source": str(default_model_path), "threads": 2}, "cache": {"kv_tokens": 4096}}
    for name, value in changes.items():
        section, key = name.split("__")
        if name == "model__dtype":
            value, _, activations = value.partition(" x ")
            tree["model"]["activations"] = activations or "auto"
        tree.setdefault(section, {})[key] = value
    return LLM(EngineConfig.model_validate(tree))


OTHER_ACTIVATIONS = [pytest.param(name, marks=pytest.mark.slow) for name in ("bf16 x bf16", "auto x fp32")]


@pytest.fixture(scope="module", params=["auto", "bf16", "int8", *OTHER_ACTIVATIONS])
def dtype(request) -> str:
    return request.param


# By default only as the model is kept: `test_everything_at_once` has chunks, preemption, drafts and one thread in every type.
each_dtype_when_slow = pytest.mark.parametrize(
    "dtype",
    ["auto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bf16", "int8")), *OTHER_ACTIVATIONS],
    indirect=True,
    scope="module",
)


@pytest.fixture(scope="module")
def plain(default_model_path, dtype) -> Iterator[LLM]:
    with engine(default_model_path, model__dtype=dtype, cache__prefix_caching=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(plain) -> dict[tuple[str, int], tuple[int, ...]]:
    """The reference: each prompt on its own, whole, without any technique."""
    return {
        (law, index): plain.generate([prompt], sampling)[0].output_ids
        for law, sampling in SAMPLING.items()
        for index, prompt in enumerate(PROMPTS)
    }


def same(alone, law: str, completions: list[Completion]) -> None:
    for index, completion in enumerate(completions):
        assert completion.error is None
        assert completion.output_ids == alone[law, index], f"{law}, prompt {index}"


def crowd(llm: LLM, law: str) -> list[Completion]:
    """The prompts among neighbours of other parameters, all at once; their completions."""
    sampling = [SAMPLING[law]] * len(PROMPTS) + [NEIGHBOUR] * len(NEIGHBOURS)
    return llm.generate([*PROMPTS, *NEIGHBOURS], sampling)[: len(PROMPTS)]


def one_by_one(llm: LLM, law: str) -> list[Completion]:
    return [llm.generate([prompt], SAMPLING[law])[0] for prompt in PROMPTS]


def test_again(plain, alone):
    for law in SAMPLING:
        same(alone, law, one_by_one(plain, law))


def test_batched_with_neighbours_of_other_parameters(plain, alone):
    for law in SAMPLING:
        same(alone, law, crowd(plain, law))


@each_dtype_when_slow
@pytest.mark.parametrize("budget", [7, 16])
def test_chunked(default_model_path, dtype, alone, budget):
    settings = {"scheduler__max_batch_tokens": budget, "scheduler__max_running": 4}
    with engine(default_model_path, model__dtype=dtype, cache__prefix_caching=False, **settings) as llm:
        for law in SAMPLING:
            same(alone, law, llm.generate(PROMPTS, SAMPLING[law]))


def test_prefix_cached(default_model_path, dtype, alone):
    with engine(default_model_path, model__dtype=dtype) as llm:
        llm.generate(PROMPTS, SAMPLING["greedy"])
        for law in SAMPLING:
            warm = llm.generate(PROMPTS, SAMPLING[law])
            assert all(completion.trace.cached_tokens > 0 for completion in warm)
            same(alone, law, warm)


@each_dtype_when_slow
def test_preempted(default_model_path, dtype, alone):
    with engine(default_model_path, model__dtype=dtype, cache__kv_tokens=144, cache__prefix_caching=False) as llm:
        for law in SAMPLING:
            completions = llm.generate(PROMPTS, SAMPLING[law])
            assert any(completion.trace.preemptions for completion in completions)
            same(alone, law, completions)


@each_dtype_when_slow
@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafts_of_text_coupled(default_model_path, dtype, alone, method):
    speculation = {"speculation__method": method, "speculation__lookup_min": 1, "speculation__suffix": {"factor": 2.0}}
    with engine(default_model_path, model__dtype=dtype, **speculation) as llm:
        for law in SAMPLING:
            for completions in (one_by_one(llm, law), crowd(llm, law)):
                drafts = [completion.trace.drafts for completion in completions]
                assert sum(sum(d.accepted) for d in drafts) > 0
                assert sum(sum(d.drafted) - sum(d.accepted) for d in drafts) > 0, "no rollback was exercised"
                same(alone, law, completions)


def test_draft_model_coupled(default_model_path, dtype, alone):
    """Small pools preempt both models' KV; weights kept in another type make the draft differ from the target here and there."""
    settings = {
        "speculation__method": "draft",
        "speculation__draft": str(default_model_path),
        "speculation__draft_dtype": "int8" if dtype.startswith("auto") else "auto",
        "speculation__k": 3,
        "scheduler__max_running": 4,
        "scheduler__max_batch_tokens": 64,
    }
    with engine(default_model_path, model__dtype=dtype, cache__kv_tokens=320, **settings) as llm:
        for law in SAMPLING:
            completions = crowd(llm, law)
            drafts = [completion.trace.drafts for completion in completions]
            assert sum(sum(d.accepted) for d in drafts) > 0.5 * sum(sum(d.drafted) for d in drafts) > 0
            same(alone, law, completions)
            llm.built.engine.check()


@each_dtype_when_slow
def test_one_thread(default_model_path, dtype, alone):
    with engine(default_model_path, model__dtype=dtype, model__threads=1, cache__prefix_caching=False) as llm:
        for law in SAMPLING:
            same(alone, law, llm.generate(PROMPTS, SAMPLING[law]))


TIERED = {
    "memory": {"kv__tiers": ["dram:64MiB"]},
    "folder, chunked": {"kv__tiers": ["disk"], "scheduler__max_batch_tokens": 16, "scheduler__max_running": 4},
    "both, preempted": {"kv__tiers": ["dram:2MiB", "disk"], "cache__kv_tokens": 144},
    "folder, drafts": {"kv__tiers": ["disk"], "speculation__method": "ngram", "speculation__lookup_min": 1},
}


@each_dtype_when_slow
@pytest.mark.parametrize("name", TIERED)
def test_loaded_from_tiers(default_model_path, dtype, alone, tmp_path, name):
    """What the device has is forgotten before each round, so that every prefix hit comes back through a tier."""
    settings = {"kv__policy": "always", **TIERED[name]}
    settings["kv__tiers"] = [f"disk:{tmp_path}:64MiB" if tier == "disk" else tier for tier in settings["kv__tiers"]]
    with engine(default_model_path, model__dtype=dtype, **settings) as llm:
        for law in SAMPLING:
            one_by_one(llm, law)
            loaded = 0
            for serve in (one_by_one, crowd):
                stored(llm)
                completions = serve(llm, law)
                loaded += sum(one.trace.kv.loaded_tokens for one in completions if one.trace.kv is not None)
                same(alone, law, completions)
                llm.built.engine.check()
            assert loaded > 0, "nothing came from a tier"


def stored(llm: LLM) -> None:
    """Everything is in tiers, and nothing is left on the device."""
    one = llm.built.engine
    while one.has_work:
        asyncio.run(one.step())
    until_s = time.monotonic() + PATIENCE_S
    while any(value for name, value in one.tier_counters().items() if name.startswith("tier_queued_bytes")):
        assert time.monotonic() < until_s, "the tiers do not take what they are given"
        time.sleep(0.01)
    one.scheduler.pool.clear_cache()


def test_everything_at_once(default_model_path, dtype, alone):
    settings = {"scheduler__max_batch_tokens": 24, "scheduler__max_running": 3, "speculation__method": "ngram"}
    with engine(default_model_path, model__dtype=dtype, cache__kv_tokens=256, model__threads=1, **settings) as llm:
        for law in SAMPLING:
            for _ in range(2):
                same(alone, law, crowd(llm, law))
                llm.built.engine.check()
