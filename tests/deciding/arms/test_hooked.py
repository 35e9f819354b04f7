"""Arms operated by shell commands: told what they need, limited in time, explained when they fail, always stopped."""

import os
import shlex
import signal
import subprocess
import sys
import time

import psutil
import pytest

from netgain.deciding.experiment.arms.hooked import HookedArm
from netgain.deciding.experiment.arms.hooks import hooks_from, read_hooks
from netgain.deciding.experiment.arms.startup import end
from netgain.errors import Unavailable, UsageError
from tests.waiting import PATIENCE_S

SERVER = f"{shlex.quote(sys.executable)} -m http.server --bind 127.0.0.1 $NETGAIN_PORT"


@pytest.fixture
def hooks(tmp_path, unused_port):
    def build(**changes):
        log = tmp_path / "log"
        tree = {
            "url": f"http://127.0.0.1:{unused_port}",
            "health": "/",
            "start": f"echo $NETGAIN_HOOK $NETGAIN_ARM $NETGAIN_FLAGS >> {log}; cd {tmp_path}; "
            f"{SERVER} > server.log 2>&1 & echo $! > {tmp_path}/pid",
            "stop": f"echo $NETGAIN_HOOK $NETGAIN_URL >> {log}; kill $(cat {tmp_path}/pid)",
            **changes,
        }
        return hooks_from({name: value for name, value in tree.items() if value is not None}, "hooks.yaml")

    return build


@pytest.fixture
def unused_port():
    from netgain.deciding.experiment.arms.port import free_port

    return free_port()


def gone(pid):
    until = time.monotonic() + PATIENCE_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, f"process {pid} is still there"
        time.sleep(0.02)


async def test_hooks_start_a_server_that_outlives_them_and_stop_it(hooks, tmp_path, unused_port):
    observe = """echo '{"cpu_s": 1.5, "resident_bytes": 10, "processes": 2}'"""
    arm = HookedArm("candidate", hooks(observe=observe), ("--k", "a b"))
    await arm.start()
    await arm.ready(PATIENCE_S)
    pid = int((tmp_path / "pid").read_text())
    assert arm.observe().cpu_s == 1.5
    await arm.stop()
    await arm.stop()
    gone(pid)
    url = f"http://127.0.0.1:{unused_port}"
    assert (tmp_path / "log").read_text() == f"start candidate --k 'a b'\nstop {url}\n"


async def test_a_failing_hook_is_told_with_its_code_and_stderr_and_the_arm_is_stopped(hooks, tmp_path):
    arm = HookedArm("candidate", hooks(start="echo no such release >&2; exit 7"))
    with pytest.raises(Unavailable, match=r"start hook of the candidate arm ended with code 7[\s\S]*no such release"):
        await arm.start()
    with pytest.raises(Unavailable, match=r"stop hook of the candidate arm ended with code"):
        await arm.stop()  # it ran: there is no server to kill
    assert "stop" in (tmp_path / "log").read_text()


async def test_hooks_that_hang_are_ended_at_their_limit_with_what_they_started(hooks, tmp_path):
    hang = {"run": f"echo $$ > {tmp_path}/hung; echo waiting for the scheduler >&2; sleep 600", "timeout_s": 0.5}
    arm = HookedArm("candidate", hooks(start=hang, stop={**hang, "timeout_s": 1.0}))
    with pytest.raises(Unavailable, match=r"start hook .* took longer than 0.5 s[\s\S]*waiting for the scheduler"):
        await arm.start()
    gone(int((tmp_path / "hung").read_text()))
    with pytest.raises(Unavailable, match=r"stop hook .* took longer than 1 s[\s\S]*waiting for the scheduler"):
        await arm.stop()
    gone(int((tmp_path / "hung").read_text()))


KILLED = """
import asyncio, sys, time
from pathlib import Path
from netgain.deciding.experiment.arms.hooked import HookedArm
from netgain.deciding.experiment.arms.hooks import hooks_from
async def main():
    folder = Path(sys.argv[1])
    arm = HookedArm("baseline", hooks_from({"url": "http://127.0.0.1:9", "start": "true",
        "stop": f"sleep 0.2; echo $NETGAIN_ARM > {folder}/stopped.part; mv {folder}/stopped.part {folder}/stopped"}, "hooks"))
    await arm.start()
    print("started", flush=True)
    time.sleep(600)
asyncio.run(main())
"""


def test_kill_9_of_netgain_still_runs_the_stop_hook(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as lab:
        assert lab.stdout.readline() == b"started\n"
        assert not (tmp_path / "stopped").exists()
        lab.send_signal(signal.SIGKILL)
    until = time.monotonic() + PATIENCE_S
    while not (tmp_path / "stopped").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    assert (tmp_path / "stopped").read_text() == "baseline\n"


STARTING = KILLED.replace('"start": "true"', '"start": f"echo; sleep 1.5; touch {folder}/deployed"').replace(
    "await arm.start()", "asyncio.get_running_loop().call_later(0.5, print, 'started'); await arm.start()"
)


def test_kill_9_while_the_start_hook_runs_leaves_nothing_deployed_behind_the_stop_hook(tmp_path):
    """A `helm upgrade --wait` that went on would finish after the uninstall."""
    command = [sys.executable, "-u", "-c", STARTING, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as lab:
        assert lab.stdout.readline() == b"started\n"
        lab.send_signal(signal.SIGKILL)
    until = time.monotonic() + PATIENCE_S
    while not (tmp_path / "stopped").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(1.7)  # as long as the start hook would have taken
    assert not (tmp_path / "deployed").exists()


async def test_the_start_hook_may_tell_the_url(hooks):
    arm = HookedArm(
        "candidate", hooks(url=None, start="""echo submitted; echo '{"url": "http://node17:8000/v1"}'""", stop="true")
    )
    with pytest.raises(Unavailable, match="was not started"):
        _ = arm.url
    await arm.start()
    assert arm.url == "http://node17:8000"
    await arm.stop()


def test_one_file_tells_the_urls_of_all_arms(hooks):
    both = hooks(url="http://llm-{arm}.example:8000")
    assert HookedArm("baseline", both).url == "http://llm-baseline.example:8000"
    assert HookedArm("candidate", both).url == "http://llm-candidate.example:8000"


async def test_an_arm_without_any_url_is_refused_with_what_its_hook_said(hooks):
    arm = HookedArm("candidate", hooks(url=None, start="echo submitted batch job 7", stop="true"))
    with pytest.raises(UsageError, match="submitted batch job 7"):
        await arm.start()
    await arm.stop()


@pytest.mark.parametrize("observe", ["exit 3", "echo not json", "echo {}", {"run": "sleep 600", "timeout_s": 0.2}])
def test_an_arm_that_cannot_be_observed_is_unknown_not_zero(hooks, observe):
    arm = HookedArm("candidate", hooks(observe=observe))
    assert arm.observe() is None
    assert arm.observe_failure


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("start: a\nstop: b\nstrat: c\n", "unknown field 'strat': did you mean 'start'"),
        ("start: a\n", "missing required field `stop`"),
        ("start: ''\nstop: b\n", "empty command for start"),
        ("start: {run: a, timeout_s: 0}\nstop: b\n", "gives start 0 s"),
        ("start: {run: a, limit: 1}\nstop: b\n", "unknown field `limit`"),
        ("start: a\nstop: b\nengine: vlm\n", "Invalid enum value 'vlm'"),
        ("start: a\nstop: b\ndevices: 0\n", "occupies 0 devices"),
        ("- a\n", "does not name hooks"),
        ("start: [\n", "is no YAML"),
        ("start: a\nstop: true", "stop is True, a truth value; put the command in quotes"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_the_place(tmp_path, text, told):
    path = tmp_path / "hooks.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_hooks(path)


def test_toml_says_the_same_as_yaml(tmp_path):
    (tmp_path / "hooks.toml").write_text('stop = "b"\nengine = "vllm"\n[start]\nrun = "a"\ntimeout_s = 5.0\n')
    (tmp_path / "hooks.yaml").write_text("stop: b\nengine: vllm\nstart: {run: a, timeout_s: 5.0}\n")
    assert read_hooks(tmp_path / "hooks.toml") == read_hooks(tmp_path / "hooks.yaml")


async def test_a_stop_that_fails_at_the_end_is_told_and_costs_nothing_else():
    class Stubborn:
        name = "candidate"

        async def stop(self):
            raise Unavailable("the stop hook ended with code 3")

    told = []
    await end(Stubborn(), told.append)
    assert told == ["The candidate server did not end as it should: the stop hook ended with code 3"]


async def test_secrets_in_hooks_and_in_what_they_say_are_hidden(hooks):
    start = "echo 'password: s3cret' >&2; curl -H 'Authorization: Bearer s3cret' -f http://127.0.0.1:9; exit 7"
    arm = HookedArm("candidate", hooks(start=start, stop="true"), ("--api-key", "s3cret", "--k", "2"))
    with pytest.raises(Unavailable) as failed:
        await arm.start()
    await arm.stop()
    assert "ended with code 7" in str(failed.value)
    assert "s3cret" not in f"{failed.value} {arm.command}"
    assert "--k 2" in arm.command[0]
    told = HookedArm("candidate", hooks(url=None, start="echo hf_s3cretvalue", stop="true"))
    with pytest.raises(UsageError) as refused:
        await told.start()
    await told.stop()
    assert "s3cret" not in str(refused.value)


async def test_a_url_that_a_hook_printed_and_that_is_none_is_said_to_be_the_hooks(hooks):
    arm = HookedArm("candidate", hooks(url=None, start="""echo '{"url": ""}'""", stop="true"))
    with pytest.raises(UsageError, match="the start hook of the candidate arm printed a url that is none"):
        await arm.start()
    await arm.stop()


@pytest.mark.parametrize("observe", ["sleep 31 | cat", "sleep 31; true", "(sleep 31 &) ; sleep 31"])
def test_an_observe_hook_that_hangs_is_ended_with_what_it_started(hooks, observe, leaves_no_process):
    """A pipe that its children hold open made the look at an arm as long as they lived."""
    arm = HookedArm("baseline", hooks(observe={"run": observe, "timeout_s": 0.3}))
    began_s = time.monotonic()
    assert arm.observe() is None
    assert time.monotonic() - began_s < 25.0
    assert "took longer than 0.3 s" in arm.observe_failure
