"""The launched arm, with a small scripted server in place of netgain: ready, observed, and gone with all it started."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys

import psutil
import pytest

from netgain.deciding.experiment.arms.netgain import launched_netgain
from netgain.deciding.experiment.arms.starting import Starting
from netgain.errors import Unavailable, UsageError
from tests.waiting import PATIENCE_S

SERVER = f"""#!{sys.executable}
import http.server, os, signal, subprocess, sys, time
port = int(sys.argv[sys.argv.index("--port") + 1])
mode = sys.argv[sys.argv.index("serve") + 1]
print("starting in mode", mode, flush=True)
if mode == "crashes":
    os.kill(os.getpid(), signal.SIGSEGV)
if mode == "fails":
    print("the model is missing", flush=True)
    sys.exit(3)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=mode == "strays")
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if mode == "hangs":
            time.sleep(600)
        self.send_response(200 if mode != "sick" else 503)
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def server_file(folder):
    path = folder / "server.py"
    path.write_text(SERVER)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def scripted(tmp_path):
    path = server_file(tmp_path)
    return lambda mode: launched_netgain(
        "candidate", (mode,), tmp_path / "arm.log", starting=Starting(python=str(path))
    )


@pytest.fixture
def family():
    """Every process started since the test began: others of the session may run on."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [child for child in psutil.Process().children(recursive=True) if child not in before]


@pytest.mark.parametrize("mode", ["plain", "strays"])
async def test_it_becomes_ready_is_observed_and_leaves_nothing(scripted, leaves_no_process, family, mode):
    arm = scripted(mode)
    await arm.start()
    await arm.ready(PATIENCE_S)
    seen = arm.observe()
    assert seen.processes == 2
    assert seen.cpu_s > 0.0
    assert seen.resident_bytes > 1_000_000
    started = family()
    await arm.stop()
    _, alive = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert not alive
    await arm.stop()
    assert arm.observe() is None


async def test_a_server_that_ends_while_starting_shows_its_log(scripted, leaves_no_process):
    arm = scripted("fails")
    await arm.start()
    with pytest.raises(Unavailable, match=r"code 3[\s\S]*the model is missing"):
        await arm.ready(PATIENCE_S)
    await arm.stop()


async def test_waiting_for_a_server_that_is_never_ready_is_bounded(scripted, leaves_no_process):
    arm = scripted("sick")
    await arm.start()
    with pytest.raises(Unavailable, match=r"not ready after 1 s[\s\S]*starting in mode sick"):
        await arm.ready(1.0)
    await arm.stop()


async def test_a_health_endpoint_that_takes_the_question_and_never_answers_is_not_waited_for_longer(
    scripted, leaves_no_process
):
    arm = scripted("hangs")
    await arm.start()
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable, match=r"not ready after 1 s"):
        await arm.ready(1.0)
    assert asyncio.get_running_loop().time() - began < 60.0
    await arm.stop()


async def test_a_server_killed_by_a_signal_while_starting_is_said_to_be(scripted, leaves_no_process):
    arm = scripted("crashes")
    await arm.start()
    with pytest.raises(Unavailable, match=r"was ended by SIGSEGV while starting[\s\S]*mode crashes"):
        await arm.ready(PATIENCE_S)
    await arm.stop()


async def test_a_program_that_is_not_there_cannot_be_started(tmp_path, leaves_no_process):
    arm = launched_netgain("candidate", (), tmp_path / "arm.log", starting=Starting(python=str(tmp_path / "absent")))
    with pytest.raises(Unavailable, match="there is no program"):
        await arm.start()


async def test_a_pinned_port_is_kept_over_starts_and_refused_while_another_has_it(tmp_path, leaves_no_process):
    path = server_file(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arm = launched_netgain(
            "candidate", ("plain",), tmp_path / "arm.log", starting=Starting(python=str(path)), port=port
        )
        with pytest.raises(UsageError, match=f"port {port} of the candidate arm cannot be used"):
            await arm.start()
    for _ in range(2):
        await arm.start()
        await arm.ready(PATIENCE_S)
        assert arm.url == f"http://127.0.0.1:{port}"
        await arm.stop()


LAUNCHER = """
import asyncio, psutil, sys, time
from pathlib import Path
from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
async def main():
    program = Program(
        command=lambda port: (sys.argv[1], "serve", sys.argv[2], "--port", str(port)), shown=("server",), shutdown_s=1.0
    )
    arm = LaunchedServer("candidate", program, Path(sys.argv[1]).with_name("arm.log"))
    await arm.start()
    await arm.ready(90.0)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    time.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("mode", ["strays", "stubborn"])
def test_kill_9_of_netgain_takes_the_server_with_it_and_children_in_sessions_of_their_own(
    tmp_path, leaves_no_process, mode
):
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(server_file(tmp_path)), mode], stdout=subprocess.PIPE, text=True
    ) as lab:
        started = [psutil.Process(int(pid)) for pid in lab.stdout.readline().split()]
        assert len(started) == 3, "the keeper, the server and its child"
        lab.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert not alive


async def test_cancelling_the_stop_still_kills_a_stubborn_server(scripted, leaves_no_process, family):
    arm = scripted("stubborn")
    await arm.start()
    await arm.ready(PATIENCE_S)
    stopping = asyncio.create_task(arm.stop())
    await asyncio.sleep(0.3)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not family()


async def test_before_start_there_is_nothing_to_stop_and_no_address(scripted):
    arm = scripted("plain")
    await arm.stop()
    with pytest.raises(Unavailable):
        _ = arm.url


async def test_a_frozen_server_answers_again_after_it_is_resumed_and_can_be_stopped_while_frozen(
    scripted, leaves_no_process, family
):
    arm = scripted("plain")
    await arm.start()
    await arm.ready(PATIENCE_S)
    (guard,) = (child for child in family() if child.ppid() == os.getpid())
    members = guard.children(recursive=True)
    arm.pause()
    async with asyncio.timeout(PATIENCE_S):  # the kernel stops a process when it next leaves the processor
        while {member.status() for member in members} != {psutil.STATUS_STOPPED}:
            await asyncio.sleep(0.01)
    arm.resume()
    await arm.ready(PATIENCE_S)
    arm.pause()
    await arm.stop()
    _, alive = psutil.wait_procs(members, timeout=PATIENCE_S)
    assert not alive
