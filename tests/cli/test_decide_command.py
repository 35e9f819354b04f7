"""`netgain decide` refuses what it cannot do before it starts anything."""

import pytest

from netgain.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "edits"], "did you mean 'edit'"),
        (["--workload", "nowhere/prompts.jsonl"], "cannot be read"),
        (["--technique", "ngrm"], "did you mean 'ngram'"),
        (["--slo", "ttft=fast"], "not understood"),
        (["--concurrency", "0"], "concurrency is 0"),
        (["--temperature", "9"], "temperature is 9.0"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, said, tmp_path, capsys, leaves_no_process):
    assert run(["decide", *arguments, "--output", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_help_names_the_forms(capsys):
    assert run(["decide", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--quick" in told
    assert "--slo" in told


def test_a_baseline_that_cannot_start_shows_its_log(tmp_path, capsys, leaves_no_process):
    missing = str(tmp_path / "no-such-model.gguf")
    assert run(["decide", "--quick", "--model", missing, "--output", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert "baseline server ended with code" in told
    assert "no-such-model.gguf" in told
