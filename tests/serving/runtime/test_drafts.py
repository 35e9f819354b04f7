"""A draft model beside its target: what fits, what is refused, and what it takes."""

import json
import shutil

import pytest

from netgain.errors import UsageError
from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM
from tests.serving.runtime.heads import write_head


def engine(target, draft, **speculation) -> LLM:
    settings = {"method": "draft", "draft": str(draft), "k": 3, **speculation}
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


def test_a_draft_that_knows_more_ids_says_only_those_of_the_target(tiny):
    target, draft = tiny(seed=1), tiny(seed=2, vocab_size=1200)
    law = SamplingParams(max_tokens=60, temperature=1.5, seed=3, ignore_eos=True)
    with engine(target.folder, draft.folder, verifier="rejection") as llm:
        (answer,) = llm.generate([[1, 5, 256, 40]], law)
        assert answer.error is None
        # three quarters of its ids are nobody's: cut off there, hardly a draft would have its three tokens
        assert answer.trace.drafts.drafted[2] > 0.9 * answer.trace.drafts.drafted[0]


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


@pytest.mark.parametrize("settings", [{"method": "draft"}, {"method": "ngram", "draft": "default"}])
def test_method_and_draft_go_together(settings):
    with pytest.raises(ValueError, match="draft"):
        EngineConfig.model_validate({"speculation": settings})


@pytest.mark.parametrize("kind", ["feature", "medusa"])
def test_a_chain_in_one_call_says_what_its_passes_say_one_by_one(tiny, tmp_path, kind):
    """A penalty too small to change a choice has every pass made by itself."""
    target = tiny(num_hidden_layers=4, vocab_size=300)
    write_head(tmp_path / "head", target.folder, kind, taps=(0, 2), positions=3)
    prompts = [[1, 5, 256, 40] * 9, [9, 2, 7]]
    seen = []
    for penalty in (0.0, 1e-9):
        with engine(target.folder, tmp_path / "head") as llm:
            law = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.0, presence_penalty=penalty)
            answers = llm.generate(prompts, [law] * 2)
            seen.append([(answer.output_ids, answer.trace.drafts.by_length) for answer in answers])
    assert seen[0] == seen[1]
    assert all(counts for _, counts in seen[0])


@pytest.mark.parametrize("kind", ["feature", "medusa"])
@pytest.mark.parametrize("taps", [(0, 2), (1, 3)])
@pytest.mark.parametrize("verifier", ["coupled", "rejection", "block"])
def test_a_head_changes_no_token_and_is_sometimes_right(tiny, tmp_path, kind, taps, verifier):
    """Under sampling the other verifiers keep the law only, so tokens are compared for greedy requests."""
    target = tiny(num_hidden_layers=4, vocab_size=300)
    write_head(tmp_path / "head", target.folder, kind, taps=taps, said=range(0, 300, 2))
    prompts = [[1, 5, 256, 40] * 9, [1, 5, 256, 40] * 9 + [7], [9, 2]]
    laws = [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3, "frequency_penalty": 0.3}]
    sampling = [
        SamplingParams(max_tokens=60, ignore_eos=True, **law) for law in (laws if verifier == "coupled" else laws[:1])
    ]
    model = {"source": str(target.folder)}
    with LLM(EngineConfig.model_validate({"model": model, "cache": {"kv_tokens": 512}})) as llm:
        alone = [llm.generate([prompt], law)[0].output_ids for prompt in prompts for law in sampling]
    with engine(target.folder, tmp_path / "head", verifier=verifier) as llm:
        for _ in range(2):  # the second time with prefixes from the cache
            laws = sampling * len(prompts)
            answers = llm.generate([prompt for prompt in prompts for _ in sampling], laws)
            assert [answer.output_ids for answer in answers] == alone
            assert sum(sum(answer.trace.drafts.drafted) for answer in answers) > 0
            assert llm.built.engine.stats().draft_faults == 0
        info = llm.built.info
    assert info["draft"].startswith(kind)
    assert info["draft_kv_token_bytes"] == len(taps) * 64 * 2 + (2 * 2 * 16 * 2 if kind == "feature" else 0)


def test_a_head_for_other_weights_is_refused(tiny, tmp_path):
    target, other = tiny(seed=1), tiny(seed=2)
    write_head(tmp_path / "head", other.folder, "feature", taps=(0,))
    with pytest.raises(UsageError, match=r"was trained for .*weights digest is .*netgain draft train"):
        engine(target.folder, tmp_path / "head")


def test_more_drafts_than_medusa_has_heads_are_said(tiny, tmp_path):
    target = tiny()
    write_head(tmp_path / "head", target.folder, "medusa", taps=(0,), positions=2)
    with engine(target.folder, tmp_path / "head", k=5) as llm:
        assert "was made for 2" in llm.built.info["settings_note"]
        (answer,) = llm.generate([[1, 5]], SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True))
        assert len(answer.trace.drafts.drafted) == 2


@pytest.mark.parametrize("kind", ["feature", "medusa"])
def test_a_head_is_kept_in_the_type_asked_for_and_changes_no_token(tiny, tmp_path, kind):
    target = tiny(num_hidden_layers=3)
    write_head(tmp_path / "head", target.folder, kind, taps=(0, 2))
    answers, sizes = set(), {}
    for dtype in ("auto", "fp32", "bf16", "int8", "int4"):
        with engine(target.folder, tmp_path / "head", draft_dtype=dtype) as llm:
            (answer,) = llm.generate([[1, 5, 40]], SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True))
            assert sum(answer.trace.drafts.drafted) > 0
            answers.add(answer.output_ids)
            sizes[dtype] = llm.built.info["draft_weight_bytes"]
    assert len(answers) == 1
    assert sizes["fp32"] > sizes["bf16"] > sizes["int8"] > sizes["int4"]
    assert sizes["auto"] == sizes["int8"]
