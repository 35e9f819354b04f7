"""A draft model beside its target: what fits, what is refused, and what it takes."""

import json
import shutil

import pytest

from netgain.errors import UsageError
from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM


def engine(target, draft, **speculation) -> LLM:
    settings = {"method": "draft_model", "draft": str(draft), "k": 3, **speculation}
    cache = {"kv_tokens": 512}
    return LLM(EngineConfig.model_validate({"model": {"source": str(target)}, "cache": cache, "speculation": settings}))


def test_a_model_drafts_for_itself(tiny):
    model = tiny()
    with engine(model.folder, model.folder) as llm:
        (answer,) = llm.generate(
            [[1, 5, 256, 40]], SamplingParams(max_tokens=41, temperature=0.7, seed=2, ignore_eos=True)
        )
        assert answer.trace.drafts.drafted == answer.trace.drafts.accepted == [10, 10, 10]
        info = llm.built.info
    assert info["draft_kv_token_bytes"] * 2 == info["kv_token_bytes"]
    assert info["draft_weight_bytes"] == info["weight_bytes"]


def test_another_model_changes_no_token(tiny):
    target, draft = tiny(seed=1), tiny(seed=2, num_hidden_layers=1, hidden_size=32, max_position_embeddings=64)
    sampling = SamplingParams(max_tokens=80, temperature=0.9, seed=3, ignore_eos=True)
    with LLM(
        EngineConfig.model_validate({"model": {"source": str(target.folder)}, "cache": {"kv_tokens": 512}})
    ) as llm:
        (alone,) = llm.generate([[1, 5, 256, 40]], sampling)
    with engine(target.folder, draft.folder) as llm:
        (answer,) = llm.generate([[1, 5, 256, 40]], sampling)
    assert answer.output_ids == alone.output_ids
    assert sum(answer.trace.drafts.drafted) > 0


def test_another_vocabulary_is_refused_with_the_token(tiny):
    target, draft = tiny(seed=1), tiny(seed=2)
    path = draft.folder / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    spec = json.loads(text)
    vocab = spec["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(spec), encoding="utf-8")
    with pytest.raises(UsageError, match=r"token \d+ is '[ab]' to it and '[ab]' to the model"):
        engine(target.folder, draft.folder)


def test_a_draft_that_is_not_there_is_named(tiny, tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        engine(tiny().folder, tmp_path / "nowhere")
    shutil.rmtree(tmp_path / "nowhere", ignore_errors=True)


@pytest.mark.parametrize("settings", [{"method": "draft_model"}, {"method": "ngram", "draft": "default"}])
def test_method_and_draft_go_together(settings):
    with pytest.raises(ValueError, match="draft"):
        EngineConfig.model_validate({"speculation": settings})
