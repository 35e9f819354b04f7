"""How a server ends: what runs is finished, what comes is sent elsewhere, and nothing is left behind."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.error import URLError

import psutil
import pytest

from tests.serving.api.holding import begun, held, in_flight
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.usefixtures("leaves_no_process")

SETTINGS = ("engine.model.kernels=torch", "engine.model.threads=1", "fleet.hang_timeout_s=60")
TORCH = tuple(part for setting in SETTINGS for part in ("--set", setting))


def cpu_s(process: psutil.Process) -> float:
    try:
        used = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return used.user + used.system


def test_a_signal_lets_running_requests_finish_and_sends_new_ones_elsewhere(start_server, chain_model):
    with start_server(str(chain_model.folder), *TORCH) as server, ThreadPoolExecutor(2) as pool:
        said = [line for line in server.lines if not line[:4].isdigit()]  # without the log
        assert "chain: f32 weights, kernels torch-" in said[0]
        assert "no API key is asked for" in said[1]
        assert said[2:] == [f"serving at {server.url}/v1"]
        assert server.send("/health/live").json == {"status": "live"}
        assert server.send("/health/ready").status == 200
        engine = psutil.Process(server.engine_pid)
        processes = [psutil.Process(server.process.pid), engine]
        with held(engine.pid):
            whole = pool.submit(server.ask, False, "l", max_tokens=300)
            streamed = pool.submit(server.ask, False, "l", max_tokens=300, stream=True)
            wait_for(lambda: in_flight(server) == 2)
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: server.send("/health/ready").status == 503)
            assert server.health()["status"] == "draining"
            assert server.send("/health/live").status == 200
            refused = server.ask(False, "s")
            assert (refused.status, refused.json["error"]["code"]) == (503, "shutting_down")
            assert refused.headers["retry-after"]
        assert whole.result(PATIENCE_S).json["usage"]["completion_tokens"] == 300
        assert len(streamed.result(PATIENCE_S).chunks) > 200
        assert server.process.wait(PATIENCE_S) == 0
        _, alive = psutil.wait_procs(processes, timeout=PATIENCE_S)
        assert not alive
    with pytest.raises(URLError):
        server.send("/health")


def test_requests_that_outlast_the_drain_end_with_an_error_event(start_server, chain_model):
    options = (*TORCH, "--set", "server.drain_timeout_s=0.1")
    with start_server(str(chain_model.folder), *options) as server, ThreadPoolExecutor(1) as pool:
        engine = psutil.Process(server.engine_pid)
        streamed = begun(server, max_tokens=4000)
        with held(engine.pid):
            whole = pool.submit(server.ask, False, "l", max_tokens=4000)
            wait_for(lambda: in_flight(server) == 2)
            server.process.send_signal(signal.SIGINT)
            wait_for(lambda: server.process.poll() is not None or "draining 2 requests" in " ".join(server.lines))
        assert server.process.wait(PATIENCE_S) == 0
        events = streamed.read().decode().split("\n\n")
        assert "shutting down" in json.loads(events[-2].removeprefix("data: "))["error"]["message"]
        assert whole.result(PATIENCE_S).status == 503


def test_a_second_signal_ends_it_at_once(start_server, chain_model):
    with start_server(str(chain_model.folder), *TORCH, "--set", "server.drain_timeout_s=600") as server:
        engine = psutil.Process(server.engine_pid)
        running = begun(server, max_tokens=4000)
        with held(engine.pid):
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: server.health()["status"] == "draining")
            server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 130, "with 0 the request would have been waited for"
        engine.wait(PATIENCE_S)
        with contextlib.suppress(http.client.HTTPException, OSError):
            assert b"[DONE]" not in running.read()


@pytest.mark.parametrize("delay_s", [0.3, 1.5])
def test_an_interrupt_while_the_engine_loads_ends_the_start_at_once(chain_model, delay_s):
    """Also in the middle of an import, when the engine process cannot hear a signal."""
    command = [sys.executable, "-m", "netgain.cli.main", "serve", str(chain_model.folder), "--port", "0", *TORCH]
    starting = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: psutil.Process(starting.pid).children())
        time.sleep(delay_s)
        children = psutil.Process(starting.pid).children(recursive=True)
        before_s = sum(cpu_s(one) for one in (psutil.Process(starting.pid), *children))
        starting.send_signal(signal.SIGINT)
        _, status, used = os.wait4(starting.pid, 0)
        assert os.waitstatus_to_exitcode(status) in (0, 130)  # 0 once it serves: an end that was asked for
        # of processor time, which other work does not use up; what is left of a start takes several seconds
        assert used.ru_utime + used.ru_stime - before_s < 2.0
        _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
        assert not alive
    finally:
        starting.kill()
        starting.wait()


def test_a_server_whose_engine_is_given_up_ends_and_says_why(start_server, chain_model):
    """vllm-project/vllm#53157: it must recover or end, not stay without an engine for ever."""
    with start_server(str(chain_model.folder), *TORCH, "--set", "fleet.max_failures=1") as server:
        psutil.Process(server.engine_pid).kill()
        assert server.process.wait(PATIENCE_S) == 1
        wait_for(lambda: server.lines[-1].startswith("netgain: engine-0 is failed: it failed 1 times in a row"))
        assert "signal 9 (SIGKILL)" in server.lines[-1]
