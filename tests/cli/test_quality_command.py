"""`netgain quality` as a person types it."""

import pytest

from netgain.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ftp://x"], "ftp://x"),
        (["http://127.0.0.1:9", "--texts", "none"], "nothing to measure"),
        (["http://127.0.0.1:9", "--texts", "missing.txt"], "missing.txt"),
        (["http://127.0.0.1:9", "--tasks", "missing.jsonl"], "missing.jsonl"),
        (["http://127.0.0.1:9", "--scorer", "true"], "--tasks"),
        (["http://127.0.0.1:9", "--margin", "2"], "margin is 2"),
        (["http://127.0.0.1:9", "--gate"], "--against"),
        (["http://127.0.0.1:9", "--max-perplexity", "0.5"], "at least 1"),
        (["http://127.0.0.1:9", "--piece", "3"], "too short"),
        (["http://127.0.0.1:9", "--header", "Key"], "NAME=VALUE"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_code_2(arguments, said, capsys):
    assert run(["quality", *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]


def test_a_server_that_is_not_there_is_one_line_and_exit_code_1(capsys):
    assert run(["quality", "http://127.0.0.1:9"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
