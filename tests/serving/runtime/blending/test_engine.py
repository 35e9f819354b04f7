"""Requests with chunks through the engine."""

import pytest

from netgain.errors import RequestRejected
from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM
from netgain.serving.tiers.blending.joined import Chunks
from netgain.serving.tiers.blending.selection import Deviating, First, Naive
from tests.serving.runtime.blending.test_join import FIRST, PREFIX, PROMPT, QUESTION, SECOND

SPANS = ((len(PREFIX), len(PREFIX) + len(FIRST)), (len(PREFIX) + len(FIRST) + 2, len(PROMPT) - len(QUESTION)))
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def config(folder, *, blending=None, **settings):
    tree = {
        "model": {"source": str(folder), "kernels": "torch", "dtype": "fp32", "threads": 1},
        "cache": {"block_tokens": 8, "kv_tokens": 512},
        "blending": {"enabled": True, **(blending or {})},
    }
    return EngineConfig.model_validate(tree | settings)


def ask(llm, selection, prompt=PROMPT, spans=SPANS, sampling=GREEDY, times=1):
    chunks = Chunks(spans=spans, selection=selection)
    return llm.generate([prompt] * times, sampling, [chunks] * times)


@pytest.fixture
def llm(tiny):
    with LLM(config(tiny(num_hidden_layers=4).folder)) as engine:
        yield engine


def test_all_recomputed_answers_as_without_chunks(llm):
    (plain,) = llm.generate([PROMPT], GREEDY)
    (blended,) = ask(llm, Deviating(1.0))
    assert blended.output_ids == plain.output_ids
    assert not blended.trace.blending.lossy
    assert plain.trace.blending is None


def test_the_record_says_what_was_reused_and_that_it_is_lossy(llm):
    (first,) = ask(llm, Deviating(0.3))
    (second,) = ask(llm, Deviating(0.3))
    chunk_tokens = len(FIRST) + len(SECOND)
    assert first.trace.blending.computed_alone_tokens == chunk_tokens
    assert second.trace.blending.computed_alone_tokens == 0
    assert second.output_ids == first.output_ids
    assert second.trace.blending.lossy
    assert second.trace.blending.chunk_tokens == chunk_tokens
    assert chunk_tokens / 4 < second.trace.blending.recomputed_tokens < chunk_tokens


def test_without_a_calibration_nothing_is_lost(llm):
    (plain,) = llm.generate([PROMPT], GREEDY)
    (blended,) = ask(llm, None)
    assert blended.output_ids == plain.output_ids
    assert not blended.trace.blending.lossy
    assert "not been calibrated" in llm.built.info["settings_note"]


@pytest.mark.parametrize("selection", [Naive(), First(3), Deviating(0.4)], ids=str)
def test_blended_kv_is_never_found_by_a_request_without_chunks(tiny, llm, selection):
    """Nor does it matter what was computed before: the same request has the same answer."""
    (blended,) = ask(llm, selection)
    (plain,) = llm.generate([PROMPT], GREEDY)
    (again,) = ask(llm, selection)
    with LLM(config(tiny(num_hidden_layers=4).folder)) as fresh:
        assert fresh.generate([PROMPT], GREEDY)[0].output_ids == plain.output_ids
    assert plain.trace.cached_tokens <= SPANS[0][0]
    assert again.output_ids == blended.output_ids


def test_neighbours_and_lack_of_room_change_no_answer(tiny):
    """Whatever shares the batch, and however often a request loses its blocks."""
    folder = tiny(num_hidden_layers=4).folder
    longer = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    with LLM(config(folder)) as alone:
        (expected,) = ask(alone, Deviating(0.4), sampling=longer)
        (plain,) = alone.generate([PROMPT], longer)
    tight = {"cache": {"block_tokens": 8, "kv_tokens": 136}, "scheduler": {"max_batch_tokens": 32, "max_running": 4}}
    with LLM(config(folder, **tight)) as crowded:
        chunks = Chunks(spans=SPANS, selection=Deviating(0.4))
        answers = crowded.generate([PROMPT] * 6, longer, [chunks, None] * 3)
        crowded.built.engine.check()
    assert [answer.output_ids for answer in answers] == [expected.output_ids, plain.output_ids] * 3
    assert sum(answer.trace.preemptions for answer in answers) > 0


def test_chunks_outlive_the_process_in_a_folder(tiny, tmp_path):
    folder = tiny(num_hidden_layers=4).folder
    settings = {"folder": str(tmp_path / "chunks")}
    with LLM(config(folder, blending=settings)) as writer:
        (first,) = ask(writer, Naive())
    with LLM(config(folder, blending=settings)) as reader:
        (second,) = ask(reader, Naive())
    assert first.trace.blending.computed_alone_tokens > 0
    assert second.trace.blending.computed_alone_tokens == 0
    assert second.output_ids == first.output_ids


def test_damaged_chunks_are_computed_anew(tiny, tmp_path):
    folder = tiny(num_hidden_layers=4).folder
    settings = {"folder": str(tmp_path / "chunks")}
    with LLM(config(folder, blending=settings)) as writer:
        (first,) = ask(writer, Naive())
    for file in (tmp_path / "chunks").rglob("*.kv"):
        data = bytearray(file.read_bytes())
        data[-5] ^= 4
        file.write_bytes(data)
    with LLM(config(folder, blending=settings)) as reader:
        (second,) = ask(reader, Naive())
    assert second.trace.blending.computed_alone_tokens == first.trace.blending.computed_alone_tokens
    assert second.output_ids == first.output_ids


def test_what_cannot_be_is_refused(llm, tiny):
    with pytest.raises(RequestRejected, match="does not lie"):
        ask(llm, Naive(), spans=((0, 500),))
    with pytest.raises(RequestRejected, match="no chunk is given"):
        ask(llm, Naive(), spans=())
    scored = SamplingParams(max_tokens=1, prompt_logprobs=1)
    with pytest.raises(RequestRejected, match="log-probabilities of a prompt"):
        ask(llm, Naive(), sampling=scored)
    with (
        LLM(config(tiny().folder, blending={"enabled": False})) as without,
        pytest.raises(RequestRejected, match=r"engine\.blending\.enabled"),
    ):
        ask(without, Naive())
