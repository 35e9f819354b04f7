"""Drafts that the engine really makes are those that the trained module makes from fresh features: one stale feature, one
missing key or one position too late would show as another draft.

Reported elsewhere: vllm-project/vllm#14649 (after a rejection the head goes on from features it had guessed),
vllm-project/vllm#47930 and sgl-project/sglang#19897 (its keys are missing where a prefix comes from the cache)."""

import asyncio

import pytest
import torch

from netgain.ledger.clock import WallClock
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.drafts.manifest import WEIGHTS, read_manifest
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model
from netgain.serving.model.safetensors_source import SafetensorsSource
from netgain.serving.runtime.build import build_engine
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.training.modules import FeatureHeadModule, MedusaModule
from netgain.serving.training.prompts import Prompt
from netgain.serving.training.train import Recipe, train
from tests.serving.watching import Watching

PROMPTS = [
    Prompt(messages=({"role": "user", "content": text},))
    for text in ("abcabc", "who goes there", "12, 13, 14", "ab", "zz top", "the end", "once more", "x", "y", "q w e")
]
CLOSE = 0.02  # of logits, whose standard deviation is about 2


@pytest.fixture(params=["feature", "medusa"])
def trained(request, tiny, tmp_path):
    """A target, and a draft that is right often and wrong often."""
    target = tiny(num_hidden_layers=3, initializer_range=0.05)  # what it says is no chaos
    recipe = Recipe(kind=request.param, steps=30, vocab=200, reply_tokens=32, threads=1)
    folder = str(target.folder)
    train(folder, tmp_path / "draft", PROMPTS, recipe, cache=tmp_path / "cache", resume=False, tell=lambda *_: None)
    return target.folder, tmp_path / "draft"


@pytest.mark.parametrize(
    ("settings", "expects"),
    [
        ({}, "cached"),
        ({"scheduler": {"max_batch_tokens": 9, "max_running": 4}}, "chunked"),
        ({"cache": {"kv_tokens": 160, "prefix_caching": False}}, "preempted"),
    ],
)
def test_drafts_made_are_the_modules(trained, settings, expects):
    target, draft = trained
    prompts = [[1, 5, 256, 40, 9, 77] * 6 + [last] for last in (3, 4, 5)] + [[9, 2]]
    texts, traces, seen = _drafts(target, draft, prompts, settings)
    assert expects != "cached" or any(trace.cached_tokens for trace in traces.values())
    assert expects != "preempted" or any(trace.preemptions for trace in traces.values())
    counts = [trace.drafts for trace in traces.values()]
    assert 0 < sum(sum(one.accepted) for one in counts) < sum(sum(one.drafted) for one in counts)
    module, embedding, features = _module(target, draft)
    for name, start, tokens in seen:
        text = [*texts[name][: start + 1], *tokens[1:]]
        assert text[start] == tokens[0]
        tapped = torch.zeros(len(text), features(texts[name]).shape[1])
        tapped[:start] = features(texts[name])[:start]
        with torch.no_grad():
            said = module(embedding[torch.tensor(text)][None], tapped[None], len(tokens) - 1)
            for turn, drafted in enumerate(tokens[1:]):
                logits = module.head(said[turn][0, start])
                place = int((module.ids == drafted).nonzero())
                assert float(logits.max() - logits[place]) < CLOSE, f"{name}, position {start}, draft {turn}"


def _drafts(target, draft, prompts, settings):
    """Texts and traces by request, and every draft that was verified. Each prompt is asked twice, the second time when the
    first has left its prefix in the cache."""
    config = EngineConfig.model_validate(
        {
            "model": {"source": str(target), "dtype": "fp32", "threads": 1},
            "speculation": {"method": "draft", "draft": str(draft), "draft_dtype": "bf16", "k": 3},
            **{"cache": {"kv_tokens": 1024}, **settings},
        }
    )
    watching: list[Watching] = []

    def watch(executor):
        watching.append(Watching(executor))
        return watching[0]

    built = build_engine(config, WallClock(), wrap_executor=watch)
    texts, traces = {}, {}

    async def answer(turn: int) -> None:
        for number, prompt in enumerate(prompts):
            name = f"{turn}-{number}"
            texts[name] = list(prompt)
            sampling = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
            built.engine.submit(Request(id=name, prompt=tuple(prompt), sampling=sampling))
        while built.engine.has_work:
            for output in await built.engine.step():
                texts[output.request_id] += output.tokens
                if output.trace is not None:
                    traces[output.request_id] = output.trace

    for turn in range(2):
        asyncio.run(answer(turn))
    built.engine.close()
    return texts, traces, watching[0].seen


def _module(target, draft):
    manifest = read_manifest(draft)
    loaded = load_model(target, "fp32", load_kernels("auto", 1), taps=manifest.taps)
    source = SafetensorsSource(draft, WEIGHTS)
    ids = source.dense("ids")
    if manifest.kind == "feature":
        module = FeatureHeadModule(loaded.config, len(manifest.taps), ids)
    else:
        module = MedusaModule(loaded.config, len(manifest.taps), ids, manifest.positions)
    module.load_state_dict({name: source.dense(name) for name in source.names()})
    if manifest.kind == "feature":  # features lie in bfloat16 between two passes
        module.feature_norm.register_forward_pre_hook(lambda _, given: (given[0].to(torch.bfloat16).float(),))
    embedding = loaded.model.embed(torch.arange(loaded.config.vocab))
    known: dict[int, torch.Tensor] = {}

    def features(text):
        if id(text) not in known:
            known[id(text)] = _taps(loaded, text)
        return known[id(text)]

    return module, embedding, features


def _taps(loaded, text) -> torch.Tensor:
    """Fresh, float32 [tokens, taps x hidden]."""
    kv = PagedKV(loaded.config, -(-len(text) // 16), 16, torch.float32)
    table = torch.arange(kv.blocks, dtype=torch.int32)[None]
    positions, of_row = torch.arange(len(text)), torch.zeros(len(text), dtype=torch.int64)
    plan = loaded.model.kernels.plan(positions, of_row, table, 16)
    tapped = torch.empty(len(text), loaded.model.tap_width)
    loaded.model.forward(torch.tensor(text), positions, plan, kv, positions[-1:], None, tapped)
    return tapped
