"""A scorer that misbehaves fails its own item only, in bounded time and space, and leaves nothing behind."""

import shlex
import sys
import time

import psutil
import pytest

from netgain.measuring.quality.scorer_command import ScorerCommand, ScorerFailed
from netgain.measuring.quality.tasks import Task

TASK = Task(id="t1", prompt="2 + 2 =", expected=4, match="scorer")


async def score(command: str, answer: str = "4", timeout_s: float = 10.0) -> float:
    return await ScorerCommand(command, timeout_s).score(TASK, answer)


async def test_the_command_reads_the_question_and_prints_a_score(tmp_path) -> None:
    script = tmp_path / "score.py"
    script.write_text(
        "import json, sys\nasked = json.load(sys.stdin)\nprint('thinking')\nprint(0.5 if str(asked['expected']) == "
        "asked['answer'] and asked['prompt'] == '2 + 2 =' else 0.0)\n"
    )
    command = shlex.join([sys.executable, "-S", str(script)])
    assert await score(command) == 0.5
    assert await score(command, "5") == 0.0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo broken >&2; exit 3", "code 3: 'broken'"),
        ("echo 1.5", "printed '1.5'"),
        ("echo nan", "printed 'nan'"),
        ("echo good", "printed 'good'"),
        ("true", "printed nothing"),
        ("yes | head -c 200000", "more than 65536 bytes"),
        ("no-such-command-here", "code 127"),
    ],
)
async def test_a_scorer_without_a_score_says_what_it_did(command: str, said: str) -> None:
    with pytest.raises(ScorerFailed, match=said):
        await score(command)


async def test_a_scorer_need_not_read_its_input() -> None:
    assert await score("echo 1", answer="x" * 2_000_000) == 1.0


@pytest.mark.parametrize("command", ["sleep 60", "sleep 60 & echo 1"])
async def test_a_scorer_that_does_not_end_is_ended_with_what_it_started(command: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(ScorerFailed, match=r"within 0\.3 s"):
        await score(command, timeout_s=0.3)
    assert time.monotonic() - began_s < 30.0
    assert not [one for one in psutil.Process().children(recursive=True) if "sleep" in one.name()]
