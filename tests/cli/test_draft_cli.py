"""`netgain draft` as a user runs it: a draft from a model in a folder to its worth, and refusals in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netgain.cli.main import run
from tests.serving.model.conftest import tiny

__all__ = ["tiny"]

PROMPTS = "Why?\nHow so?\nabcabc\n1, 2, 3\nonce more\nthe end\nx\ny\n"


def train(*arguments: object, cache: Path) -> tuple[int, str, str]:
    """Exit code, output, errors. Replies go to `cache`; the compiled kernels are those of the user's."""
    from netgain.folders import cache_folder

    cache.mkdir()
    (cache / "kernels").symlink_to(cache_folder() / "kernels")
    done = subprocess.run(
        [sys.executable, "-m", "netgain.cli.main", "draft", "train", *map(str, arguments)],
        env={**os.environ, "NETGAIN_CACHE": str(cache)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_from_training_to_its_worth(tiny, tmp_path, capsys):
    prompts, cache, out = tmp_path / "prompts.txt", tmp_path / "cache", tmp_path / "made"
    prompts.write_text(PROMPTS)
    target = tiny().folder
    small = ("--steps", 20, "--vocab", 100, "--reply-tokens", 16, "--threads", 1)
    code, output, errors = train(target, "--out", out, "--prompts", prompts, *small, cache=cache)
    assert code == 0, errors
    assert output.strip() == str(out)
    assert "training: 100%" in errors
    assert "acceptance by position, greedy" in errors
    assert list((cache / "replies").iterdir())
    assert run(["draft", "inspect", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["manifest"]["kind"], facts["tokens_it_can_say"]) == ("feature", 100)
    prompts.write_text("something else\nand this\n")
    asked = ["--prompts", str(prompts), "--max-tokens", "12", "--threads", "1"]
    assert run(["draft", "evaluate", str(target), str(out), *asked, "--json"]) == 0
    assert {row["proposer"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"feature", "ngram", "suffix"}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("train", "default", "--out", "x", "--kind", "eagle"), "'eagle' is none of feature, medusa, layers"),
        (("train", "default", "--out", "x", "--prompts", "nowhere.txt"), "nowhere.txt cannot be read"),
        (("inspect", "nowhere"), "nowhere holds no draft"),
        (("evaluate", "default", "nowhere"), "nowhere holds no draft"),
    ],
)
def test_refusals_are_one_line(capsys, arguments, why):
    assert run(["draft", *arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    (line,) = errors.splitlines()
    assert why in line
