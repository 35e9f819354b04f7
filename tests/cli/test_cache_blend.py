"""`netgain cache blend` on a tiny random model: its figures, and what the engine makes of what it keeps."""

import json

import pytest

from netgain.cli.main import run

pytest.importorskip("torch")

from netgain.serving.runtime.blending.questions import generated, read_questions
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM
from tests.serving.model.conftest import tiny

__all__ = ["tiny"]

QUESTION = {"chunks": ["one text. ", "another text. "], "question": "which? ", "answers": ["a", "b"]}


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    many = [QUESTION | {"question": f"which of {number}? "} for number in range(5)]
    path.write_text("\n".join(json.dumps(one) for one in many))
    return path


def blend(folder, questions, *options):
    return run(["cache", "blend", str(folder), "--questions", str(questions), "--dtype", "fp32", *options])


def test_it_measures_by_ratio_and_the_engine_takes_the_chosen_one(tiny, questions, capsys):
    folder = tiny(7, num_hidden_layers=4).folder  # no other test has this one: the result stays in the cache
    assert blend(folder, questions, "--ratios", "0,0.5,1", "--first", "2", "--max-kl", "100", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    by_ratio = {point["ratio"]: point for point in found["points"]}
    assert by_ratio[1.0]["kl"] == [0.0, 0.0, 0.0]
    assert by_ratio[1.0]["same_top"] == 1.0
    assert by_ratio[0.0]["kl"][0] > 0.0
    assert by_ratio[0.0]["recomputed"] == 0.0
    assert 0.5 < by_ratio[0.5]["recomputed"] < 0.75
    assert by_ratio[None]["first"] == 2
    assert found["ratio"] == 0.0
    tree = {
        "model": {"source": str(folder), "dtype": "fp32"},
        "cache": {"kv_tokens": 512},
        "blending": {"enabled": True},
    }
    with LLM(EngineConfig.model_validate(tree)) as llm:
        assert "joined naive, as calibrated (lossy" in llm.built.info["settings_note"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1"),
        ('{"chunks": [], "question": "q"}', "not empty"),
        ('{"chunks": ["a"], "question": "q", "answers": ["x"]}', "wrong answer"),
        ("", "no question"),
    ],
)
def test_questions_that_are_none_are_refused_in_one_line(tmp_path, capsys, line, said):
    path = tmp_path / "questions.jsonl"
    path.write_text(line)
    assert blend("nowhere", path) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("option", [("--ratios", "0,2"), ("--ratios", "half"), ("--first", "0")])
def test_numbers_out_of_range_are_refused(questions, capsys, option):
    assert blend("nowhere", questions, *option) == 2
    assert option[0] in capsys.readouterr().err


def test_generated_questions_are_answered_by_their_chunks():
    for one in generated(20, 6):
        text = "".join(one.chunks)
        assert len(one.answers) == 6
        assert all(answer.strip() in text for answer in one.answers)
        assert text.count(one.answers[0].strip()) >= 1
    assert generated(4, 3) == generated(4, 3)


def test_a_file_of_questions_is_read(questions):
    assert len(read_questions(questions)) == 5
