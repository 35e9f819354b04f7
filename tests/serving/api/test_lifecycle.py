"""How a server ends: what runs is finished, what comes is sent elsewhere, and nothing is left behind."""

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.error import URLError

import psutil
import pytest

pytestmark = pytest.mark.usefixtures("leaves_no_process")

TORCH = ("--set", "engine.model.kernels=torch", "--set", "engine.model.threads=1")


def wait_for(condition, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def in_flight(server) -> int:
    return int(server.health()["replicas"][0]["in_flight"])


def test_a_signal_lets_running_requests_finish_and_sends_new_ones_elsewhere(start_server, chain_model):
    with start_server(str(chain_model.folder), *TORCH) as server, ThreadPoolExecutor(2) as pool:
        said = [line for line in server.lines if not line[:4].isdigit()]  # without the log
        assert "chain: f32 weights, kernels torch-" in said[0]
        assert "no API key is asked for" in said[1]
        assert said[2:] == [f"serving at {server.url}/v1"]
        assert server.send("/health/live").json == {"status": "live"}
        assert server.send("/health/ready").status == 200
        processes = [psutil.Process(server.process.pid), psutil.Process(server.engine_pid)]
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
        assert whole.result(20).json["usage"]["completion_tokens"] == 300
        assert len(streamed.result(20).chunks) > 200
        assert server.process.wait(10) == 0
        _, alive = psutil.wait_procs(processes, timeout=2)
        assert not alive
    with pytest.raises(URLError):
        server.send("/health")


def test_requests_that_outlast_the_drain_end_with_an_error_event(start_server, chain_model):
    options = (*TORCH, "--set", "server.drain_timeout_s=0.3")
    with start_server(str(chain_model.folder), *options) as server, ThreadPoolExecutor(2) as pool:
        streamed = pool.submit(server.ask, False, "l", max_tokens=4000, stream=True)
        whole = pool.submit(server.ask, False, "l", max_tokens=4000)
        wait_for(lambda: in_flight(server) == 2)
        time.sleep(0.2)
        assert server.stop(signal.SIGINT) == 0
        assert "shutting down" in json.loads(streamed.result(5).events[-1])["error"]["message"]
        assert whole.result(5).status == 503


def test_a_second_signal_ends_it_at_once(start_server, chain_model):
    with start_server(str(chain_model.folder), *TORCH) as server, ThreadPoolExecutor(1) as pool:
        engine = psutil.Process(server.engine_pid)
        running = pool.submit(server.ask, False, "l", max_tokens=4000, stream=True)
        wait_for(lambda: in_flight(server) == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.health()["status"] == "draining")
        started = time.monotonic()
        assert server.stop(signal.SIGTERM) == 130
        assert time.monotonic() - started < 2
        engine.wait(2)
        assert running.exception(5) is not None or b"[DONE]" not in running.result().body


@pytest.mark.parametrize("delay_s", [0.3, 1.5])
def test_an_interrupt_while_the_engine_loads_ends_the_start_at_once(chain_model, delay_s):
    """Also in the middle of an import, when the engine process cannot hear a signal."""
    command = [sys.executable, "-m", "netgain.cli.main", "serve", str(chain_model.folder), "--port", "0", *TORCH]
    starting = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: psutil.Process(starting.pid).children())
        time.sleep(delay_s)
        children = psutil.Process(starting.pid).children(recursive=True)
        started = time.monotonic()
        starting.send_signal(signal.SIGINT)
        assert starting.wait(5) in (0, 130)  # 0 once it serves: an end that was asked for
        assert time.monotonic() - started < 3  # well under a second on an idle machine
        _, alive = psutil.wait_procs(children, timeout=1)
        assert not alive
    finally:
        starting.kill()
        starting.wait()


def test_a_server_whose_engine_is_given_up_ends_and_says_why(start_server, chain_model):
    """vllm-project/vllm#53157: it must recover or end, not stay without an engine for ever."""
    with start_server(str(chain_model.folder), *TORCH, "--set", "fleet.max_failures=1") as server:
        psutil.Process(server.engine_pid).kill()
        assert server.process.wait(10) == 1
        wait_for(lambda: server.lines[-1].startswith("netgain: engine-0 is failed: it failed 1 times in a row"))
        assert "signal 9 (SIGKILL)" in server.lines[-1]
