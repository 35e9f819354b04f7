"""Heads that draft from the target's features, over prefixes that came from tiers: the same tokens, and as many drafts accepted
as over a prefix that was computed."""

import asyncio
import time

import pytest

pytest.importorskip("torch")

from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM
from netgain.serving.tiers.object import unpack_head
from tests.serving.runtime.heads import write_head
from tests.waiting import PATIENCE_S

PROMPTS = [[1, 5, 256, 40] * 24 + [number] for number in range(3)]
GREEDY = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)


def engine(target, head, *tiers, **kv):
    tree = {
        "model": {"source": str(target), "threads": 1},
        "cache": {"kv_tokens": 1024},
        "kv": {"tiers": tiers, "policy": "always", "close_s": 10, **kv},
    }
    if head is not None:
        tree["speculation"] = {"method": "draft", "draft": str(head), "k": 3}
    return LLM(EngineConfig.model_validate(tree))


def forget_the_device(llm):
    """Once everything is stored."""
    one = llm.built.engine
    while one.has_work:
        asyncio.run(one.step())
    until_s = time.monotonic() + PATIENCE_S
    while any(value for name, value in one.tier_counters().items() if name.startswith("tier_queued_bytes")):
        assert time.monotonic() < until_s
        time.sleep(0.005)
    one.scheduler.pool.clear_cache()


def told(answers):
    assert all(answer.error is None for answer in answers)
    return [(answer.output_ids, answer.trace.drafts.drafted, answer.trace.drafts.accepted) for answer in answers]


def loaded(answers):
    """By the first of them that came to it; the others find it on the device then."""
    return sum(answer.trace.kv.loaded_tokens for answer in answers if answer.trace.kv is not None)


@pytest.fixture(params=["feature", "medusa"])
def pair(request, tiny, tmp_path):
    """A model, and a head that is right more often than by chance: it says tokens of the answers only."""
    target = tiny(num_hidden_layers=4).folder
    with engine(target, None) as llm:
        plain = [answer.output_ids for answer in llm.generate(PROMPTS, GREEDY)]
    write_head(tmp_path / "head", target, request.param, taps=(1, 3), said=sorted({t for ids in plain for t in ids}))
    return target, tmp_path / "head", plain


@pytest.mark.parametrize("tier", ["dram:32MiB", "disk:{}:32MiB", "disk:{}:32MiB?codec=zstd&codec_when=always"])
def test_a_loaded_prefix_serves_a_head_as_a_computed_one_does(pair, tmp_path, tier):
    target, head, plain = pair
    tier = tier.format(tmp_path / "kv")
    with engine(target, head, tier) as llm:
        cold = told(llm.generate(PROMPTS, GREEDY))
        cached = told(llm.generate(PROMPTS, GREEDY))
        forget_the_device(llm)
        answers = llm.generate(PROMPTS, GREEDY)
        assert loaded(answers) >= 80
        assert llm.built.engine.stats().draft_faults == 0
    assert [ids for ids, _, _ in cold] == plain
    assert told(answers) == cached == cold
    assert sum(sum(accepted) for _, _, accepted in cold) > 0


def test_another_process_loads_the_features_too_and_another_head_none(pair, tmp_path):
    target, head, _ = pair
    tier = f"disk:{tmp_path / 'kv'}:32MiB"
    with engine(target, head, tier) as llm:
        cold = told(llm.generate(PROMPTS, GREEDY))
    planes = {unpack_head(file.read_bytes()).stored.part.plane for file in (tmp_path / "kv").rglob("*.kv")}
    assert len(planes) == 2
    with engine(target, head, tier) as llm:
        answers = llm.generate(PROMPTS, GREEDY)
        assert loaded(answers) >= 80
        assert told(answers) == cold
    write_head(tmp_path / "other", target, "medusa", taps=(0, 2), seed=5)
    with engine(target, tmp_path / "other", tier) as llm:
        answers = llm.generate(PROMPTS, GREEDY)
        assert loaded(answers) == 0
        assert [answer.output_ids for answer in answers] == [ids for ids, _, _ in cold]


def test_a_lossy_codec_rounds_no_features(pair, tmp_path):
    """The model's KV may be rounded where that is wanted; what heads draft from comes back as it was."""
    target, head, _ = pair
    tier = f"disk:{tmp_path / 'kv'}:32MiB?codec=int8&codec_when=always"
    with engine(target, head, tier, codec_forced=True) as llm:
        llm.generate(PROMPTS, GREEDY)
        forget_the_device(llm)
        answers = llm.generate(PROMPTS, GREEDY)
        assert loaded(answers) >= 80
    stored = [unpack_head(file.read_bytes()).stored for file in (tmp_path / "kv").rglob("*.kv")]
    assert {one.codec for one in stored if one.part.plane == "target"} == {"int8.1"}
    assert {one.codec for one in stored if one.part.plane != "target"} == {"raw"}


def test_a_prefix_that_is_loaded_in_part_leaves_no_hole_in_the_features(pair, tmp_path):
    """The rest is computed by the target, features with it."""
    target, head, _ = pair
    tier = f"disk:{tmp_path / 'kv'}:32MiB"
    with engine(target, head, tier) as llm:
        cold = told(llm.generate(PROMPTS, GREEDY))
        forget_the_device(llm)
        features = [
            file
            for file in (tmp_path / "kv").rglob("*.kv")
            if unpack_head(file.read_bytes()).stored.part.plane != "target"
        ]
        for file in features[::3]:
            file.unlink()
        answers = llm.generate(PROMPTS, GREEDY)
        llm.built.engine.check()
    assert told(answers) == cold
