"""`netgain cache experiment` as a user runs it: what is refused, what an interruption leaves, what becomes of the servers."""

import signal
import subprocess
import sys
import time

import pytest

from netgain.cli.main import run
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tokens", "8"], "8 tokens"),
        (["--prompts", "1"], "--prompts"),
        (["--dram", "lots"], "a size"),
        (["--bandwidth", "5"], "a bandwidth"),
        (["--set", "engine.kv.tiers=[]"], "engine.kv.tiers"),
        (["--timeout", "0"], "--timeout"),
        (["--output", "/proc/nowhere"], "/proc/nowhere"),
        (["--quik"], "--quik"),
    ],
)
def test_what_cannot_be_meant_ends_with_2_and_one_line(options, said, capsys):
    assert run(["cache", "experiment", *options]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_what_was_being_started(number, tmp_path, leaves_no_process):
    output = tmp_path / "out"
    command = [sys.executable, "-m", "netgain.cli.main", "cache", "experiment", str(tmp_path), "--output", str(output)]
    (tmp_path / "config.json").write_text("{")  # whatever it holds: the interruption comes first
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until_s = time.monotonic() + PATIENCE_S
    while not (output / "dram.log").exists():
        assert time.monotonic() < until_s
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, out + err
    assert "the servers that were started are gone" in out + err
    assert "Traceback" not in err
    assert not list(output.glob("kv-tier-*")), "the tier's folder is gone, too"


def test_a_model_that_cannot_be_served_is_said_in_one_line(tmp_path, capsys, leaves_no_process):
    pytest.importorskip("torch")
    output = tmp_path / "out"
    assert run(["cache", "experiment", str(tmp_path / "nowhere"), "--output", str(output)]) in (1, 2)
    assert "nowhere" in capsys.readouterr().err
