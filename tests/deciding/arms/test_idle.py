"""A server that burns a core while idle is frozen while another arm is loaded, and runs again for its own turn."""

import asyncio
import shutil
import sys
from pathlib import Path

import psutil
import pytest

from netgain.deciding.experiment.arms.idle import find_spinners, give_turn
from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
from tests.waiting import PATIENCE_S

SERVER = """
import http.server, sys, threading, time
def spin():
    while True:
        pass
def murmur():
    while True:
        time.sleep(0.2)
        until = time.thread_time() + 0.0035
        while time.thread_time() < until:
            pass
if sys.argv[1] in ("spins", "murmurs"):
    threading.Thread(target={"spins": spin, "murmurs": murmur}[sys.argv[1]], daemon=True).start()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def arm(name, folder, way):
    program = Program(command=lambda port: (sys.executable, "-c", SERVER, way, str(port)), shown=(way,), shutdown_s=2.0)
    return LaunchedServer(name, program, folder / f"{name}.log")


async def settled(process, status):
    async with asyncio.timeout(PATIENCE_S):
        while (process.status() == psutil.STATUS_STOPPED) is not status:
            await asyncio.sleep(0.01)


@pytest.mark.skipif(
    shutil.which("nvidia-smi") is not None or Path("/dev/kfd").exists(),
    reason="nothing is frozen beside an accelerator",
)
async def test_only_the_spinning_arm_is_frozen_and_only_while_another_has_its_turn(tmp_path, leaves_no_process):
    arms = {"baseline": arm("baseline", tmp_path, "spins"), "candidate": arm("candidate", tmp_path, "waits")}
    try:
        for each in arms.values():
            await each.start()
            await each.ready(PATIENCE_S)
        assert await find_spinners(arms.values()) == ("baseline",)
        (guard,) = (child for child in psutil.Process().children() if "spins" in child.cmdline())
        (server,) = guard.children()
        give_turn(arms, "candidate")
        await settled(server, True)
        give_turn(arms, "baseline")
        await settled(server, False)
        give_turn(arms, "candidate")
        give_turn(arms, None)
        await settled(server, False)
        await arms["baseline"].ready(PATIENCE_S)
        give_turn(arms, "candidate")
    finally:
        for each in arms.values():
            await each.stop()


@pytest.mark.skipif(
    shutil.which("nvidia-smi") is not None or Path("/dev/kfd").exists(),
    reason="nothing is frozen beside an accelerator",
)
async def test_a_server_that_comes_near_what_voids_a_run_is_frozen_too(tmp_path, leaves_no_process):
    """vLLM 0.32.0 used 1.5 to 6 % of a core while idle on a busy machine, and less than 2 % in the moment that it was watched."""
    murmuring = arm("baseline", tmp_path, "murmurs")
    try:
        await murmuring.start()
        await murmuring.ready(PATIENCE_S)
        assert await find_spinners((murmuring,)) == ("baseline",)
    finally:
        await murmuring.stop()
