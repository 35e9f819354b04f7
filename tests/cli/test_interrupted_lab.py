"""SIGTERM and Ctrl-C while the lab measures: what was measured is left, marked so, and nothing that was started stays."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from netgain.deciding.verdict.store import read_verdict
from netgain.measuring.measurement.result import read_measurement
from tests.deciding.compare.paced_server import paced_server

SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
PATIENCE_S = 30.0


@pytest.fixture
def workload(tmp_path: Path) -> str:
    lines = [{"id": f"p{n}", "category": "c", "max_tokens": 8, "prompt": f"question {n}"} for n in range(48)]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return str(path)


def lab(tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "netgain.cli.main", *arguments, "--output", str(tmp_path / "out")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def interrupted(process: "subprocess.Popen[str]", number: int) -> tuple[int, str]:
    """Its exit code and everything that it printed."""
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in err
    return process.returncode, out + err


def wait_for(condition) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


def asked(url: str) -> int:
    """Output tokens that a paced server has produced."""
    text = urllib.request.urlopen(f"{url}/metrics").read().decode()
    return round(
        float(next(line.split()[1] for line in text.splitlines() if line.startswith("vllm:generation_tokens")))
    )


@SIGNALS
def test_a_measurement_keeps_what_was_measured(number, tmp_path, workload, leaves_no_process):
    with paced_server(token_s=0.02) as url:
        process = lab(tmp_path, "measure", url, "--workload", workload, "--duration", "300")
        wait_for(lambda: asked(url) > 60)
        code, _ = interrupted(process, number)
    found = read_measurement(tmp_path / "out")
    assert code == (0 if found.summary.void is None else 3)
    assert found.stopped == "interrupted"
    assert found.summary.succeeded > 0


def test_impatience_costs_no_measurement(tmp_path, workload, leaves_no_process):
    """A second Ctrl-C while the server, which hangs by now, is asked how it is."""
    with paced_server(token_s=0.02) as url:
        process = lab(tmp_path, "measure", url, "--workload", workload, "--duration", "300")
        wait_for(lambda: asked(url) > 60)
        server = next(
            one
            for one in psutil.net_connections("tcp")
            if one.status == "LISTEN" and one.laddr.port == int(url[-5:].strip(":/"))
        )
        psutil.Process(server.pid).suspend()
        try:
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            code, said = interrupted(process, signal.SIGTERM)
        finally:
            psutil.Process(server.pid).resume()
    assert read_measurement(tmp_path / "out").summary.succeeded > 0, said
    assert code in (0, 3)


def test_a_comparison_of_running_servers_judges_the_groups_that_were_finished(tmp_path, workload):
    with paced_server(token_s=0.01) as before, paced_server(token_s=0.005) as after:
        process = lab(
            tmp_path, "compare", "--baseline", before, "--candidate", after, "--workload", workload,
            "--override", "devices=same", "--override", "memory=same",
        )  # fmt: skip
        wait_for(lambda: asked(before) > 250)
        code, said = interrupted(process, signal.SIGTERM)
    assert code == 130, said
    document = read_verdict(tmp_path / "out")
    assert document.design.stopped == "interrupted"
    assert document.decision == "inconclusive"
    assert any("The run was interrupted after" in caveat.says for caveat in document.caveats)
    assert 1 <= document.design.groups < 24
    assert document.design.blocks == 4 * document.design.groups
    assert "(interrupted)" in said


def test_a_comparison_without_a_finished_group_says_that_there_is_no_verdict(tmp_path, workload):
    with paced_server(token_s=0.2) as before, paced_server(token_s=0.2) as after:
        process = lab(tmp_path, "compare", "--baseline", before, "--candidate", after, "--workload", workload)
        wait_for(lambda: asked(before) > 10)
        code, said = interrupted(process, signal.SIGTERM)
    assert code == 130
    assert "no verdict was given, and the servers were left as they are" in said
    assert not (tmp_path / "out" / "verdict.json").exists()


@SIGNALS
def test_a_decision_ends_what_it_was_starting(number, tmp_path, leaves_no_process):
    hooks = tmp_path / "hooks.yaml"
    hooks.write_text(
        f"start: touch {tmp_path}/starting; sleep 300\nstop: touch {tmp_path}/stopped\nurl: http://127.0.0.1:9\n"
    )
    process = lab(tmp_path, "decide", "--hooks", str(hooks))
    wait_for((tmp_path / "starting").exists)
    code, said = interrupted(process, number)
    assert code == 130
    assert (tmp_path / "stopped").exists()
    assert "the servers that were started are gone" in said


def test_a_failure_in_the_middle_names_what_was_kept(tmp_path, workload, leaves_no_process):
    """The stop hook fails where the servers are to be started again: the blocks before it are on the disk."""
    with paced_server(token_s=0.001) as before, paced_server(token_s=0.001) as after:
        for name, url, stop in (("a", before, "true"), ("b", after, "exit 9")):
            (tmp_path / f"{name}.yaml").write_text(f"start: 'true'\nstop: '{stop}'\nurl: {url}\nengine: vllm\n")
        process = lab(
            tmp_path, "compare", "--baseline", f"{tmp_path}/a.yaml", "--candidate", f"{tmp_path}/b.yaml", "--quick",
            "--workload", workload, "--max-tokens", "4",
        )  # fmt: skip
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, err
    assert "the stop hook of the candidate arm ended with code 9" in err
    assert "24 finished blocks kept: the same command with --resume" in out
