"""A comparison of running servers that was killed goes on behind its last block, with the servers that it had begun with only."""

import json
import signal
import subprocess
import sys
import time

import pytest

from netgain.cli.main import run
from netgain.deciding.compare.resuming import check_same_servers
from netgain.deciding.decide.prepared import PREPARED
from netgain.deciding.experiment.arms.port import free_port
from netgain.deciding.experiment.journal import FILE, finished_blocks
from netgain.errors import UsageError
from netgain.measuring.measurement.result import Server
from tests.deciding.compare.paced_server import paced_server
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("leaves_no_process")

KEY = "s3cret"


@pytest.fixture
def asked(settings):
    """The same command for both runs."""

    def asked(baseline, candidate):
        workload = settings(baseline, candidate).workload
        sides = ["--baseline", baseline, "--candidate", candidate, "--header", f"Authorization=Bearer {KEY}"]
        return ["compare", *sides, "--workload", workload, "--quick", "--seed", "3"]

    return asked


def killed(arguments, folder):
    """What the journal held when the run was killed in the middle."""
    command = [sys.executable, "-m", "netgain.cli.main", *arguments, "--output", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until_s = time.monotonic() + PATIENCE_S
    while finished_blocks(folder / FILE) < 9 and process.poll() is None:
        assert time.monotonic() < until_s
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL, said
    text = (folder / FILE).read_bytes()
    return text[: text.rindex(b"\n") + 1]


def test_a_comparison_of_urls_that_was_killed_goes_on_behind_its_last_block(asked, tmp_path, capsys):
    folder = tmp_path / "out"
    with paced_server(token_s=0.006, key=KEY) as slow, paced_server(token_s=0.004, key=KEY) as quick:
        before = killed(asked(slow, quick), folder)
        assert run([*asked(slow, quick), "--output", str(folder)]) == 2
        assert "holds another experiment; resume it (--resume)" in capsys.readouterr().err
        assert run([*asked(slow, quick), "--resume", str(folder), "--concurrency", "2"]) == 2
        assert "concurrency was 1 and is 2 now" in capsys.readouterr().err
        assert run([*asked(slow, quick), "--resume", str(folder)]) == 0
        assert (folder / FILE).read_bytes().startswith(before)
        kept = (folder / "comparison.json").read_text()
        again = run([*asked(slow, quick), "--output", str(folder)])
    assert again == 0, "a folder whose report is written may be written to again"
    assert finished_blocks(folder / FILE) == 48
    assert (folder / "comparison.json").read_text() != kept
    kept = json.loads(kept)
    assert [block["index"] for block in kept["blocks"]] == list(range(48))
    verdict = kept["analysis"]["verdict"]
    assert verdict["finding"] == "faster"
    checks = {check["name"]: check for check in verdict["checks"]}
    assert checks["resumed"]["ok"] is True
    assert checks["resumed"]["says"].endswith("1 time, with the servers that it had begun with")
    assert checks["other users of the servers"]["ok"] is True, (
        "counted since the run went on, as the servers' counters are"
    )
    assert checks["restarts"]["ok"] is True
    for written in folder.rglob("*"):
        assert KEY.encode() not in written.read_bytes(), written


def test_a_server_that_was_started_anew_meanwhile_is_not_gone_on_with(asked, tmp_path, capsys):
    folder, port = tmp_path / "out", free_port()
    with paced_server(key=KEY) as candidate:
        with paced_server(key=KEY, port=port) as baseline:
            before = killed(asked(baseline, candidate), folder)
        time.sleep(1.6)  # as long as a clock that is set may have moved its start
        with paced_server(key=KEY, port=port) as baseline:
            assert run([*asked(baseline, candidate), "--resume", str(folder)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"the baseline server at {baseline} is not as it was when the run began: its process started anew" in said
    assert (folder / FILE).read_bytes().startswith(before)
    assert (folder / PREPARED).exists()


@pytest.mark.parametrize(
    "differs", [{"model": "n"}, {"engine": "sglang"}, {"version": "2"}, {"dtype": "int8"}, {"kv_tokens": 5}]
)
def test_another_model_or_engine_is_named(tmp_path, differs):
    known = {"model": "m", "engine": "vllm", "version": "1", "dtype": "bf16", "kv_tokens": 9, "started_unix_s": 100.0}
    before = Server(url="http://a:1", **known)
    now = Server(url="http://a:1", **{**known, **differs})
    assert check_same_servers(tmp_path, {"baseline": before}, {"baseline": before}, mirrored=True) == ()
    (name,) = differs
    with pytest.raises(UsageError, match=rf"baseline server at http://a:1 .* its {name} changed from {known[name]}"):
        check_same_servers(tmp_path, {"baseline": before}, {"baseline": now}, mirrored=True)


def test_what_cannot_be_seen_is_said(tmp_path):
    server = {"candidate": Server(url="http://a:1", model="m")}
    (untold,) = check_same_servers(tmp_path, server, server, mirrored=True)
    assert "a restart in between would not have been seen" in untold
    assert "may have found prompts" in check_same_servers(tmp_path, server, server, mirrored=False)[1]
