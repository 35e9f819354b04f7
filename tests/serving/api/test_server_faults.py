"""Real faults under a real server: killed and stopped engines, clients that hang up, signals, a taken port."""

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psutil
import pytest

from netgain.cli.main import run
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture(scope="module")
def server(start_server, server_options):
    """It takes an engine that is silent for some seconds for hung, and is without one for some seconds more."""
    watching = ("--set", "fleet.hang_timeout_s=4", "--set", "fleet.restart_backoff_s=1.5")
    with start_server(*server_options, *watching) as started:
        yield started


def open_request(server, **fields) -> socket.socket:
    """A completion request on a raw socket, so that the client can behave badly."""
    data = json.dumps({"prompt": "l", "temperature": 0, **fields}).encode()
    url = urlsplit(server.url)
    client = socket.create_connection((url.hostname, url.port), timeout=30)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.hostname}\r\nContent-Length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    return client


GAUGES = ("requests_running", "requests_waiting", "kv_blocks_free", "kv_blocks")


def wait_for_idle(server) -> None:
    def idle() -> bool:
        gauges = {name: server.metric(f"netgain_{name}") for name in GAUGES}
        nobody = gauges["requests_running"] == gauges["requests_waiting"] == 0
        return (
            nobody and gauges["kv_blocks_free"] == gauges["kv_blocks"]
        )  # asked for one by one: they may differ in age

    wait_for(idle, said="still busy")


def test_clients_that_give_up_leave_nothing_behind(server):
    """Avarok-Cybersecurity/atlas#368: non-streaming calls whose clients had left kept their slots for ever."""
    before = server.metric("netgain_output_tokens_total")
    asked = ({}, {"stop": "never"}, {"logprobs": 5}, {"guided_regex": "(la |lo |lu )*"}, {"n": 2})
    for fields in asked:  # two run, four wait
        open_request(server, max_tokens=4000, **fields).close()
    hurried = open_request(server, max_tokens=4000)
    time.sleep(0.2)
    hurried.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    hurried.close()  # with a reset
    assert server.ask(False, "s").json["choices"][0]["text"] == "short answer"
    wait_for_idle(server)
    made = server.metric("netgain_output_tokens_total") - before
    assert made < 4000 * len(asked) / 2, "what nobody reads was computed to its end"


def test_streams_that_clients_leave_are_aborted(server):
    clients = [open_request(server, max_tokens=4000, stream=True) for _ in range(2)]
    for client in clients:
        assert b"200 OK" in client.recv(4096)
        client.close()
    wait_for_idle(server)


def test_a_client_that_leaves_before_its_body_is_complete_harms_nobody(server):
    url = urlsplit(server.url)
    with socket.create_connection((url.hostname, url.port), timeout=30) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert server.ask(False, "s").status == 200


@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGKILL, "signal 9 (SIGKILL)"), (signal.SIGSTOP, "gave no sign of life")]
)
def test_a_dead_or_hung_engine_is_named_and_replaced(server, number, cause):
    """vllm-project/vllm#53157: the front end looked healthy while nothing could be generated."""
    server.wait_until("ready")
    restarts = server.health()["replicas"][0]["restarts"]
    steps = server.metric("netgain_steps_total")
    victim = server.engine_pid
    with ThreadPoolExecutor(2) as pool:
        streamed = pool.submit(server.ask, False, "l", max_tokens=4000, stream=True)
        whole = pool.submit(server.ask, True, "l", max_tokens=4000)
        wait_for(lambda: server.metric("netgain_requests_running") == 2)
        os.kill(victim, number)
        refusal = server.ask(False, "s", max_tokens=1) if number == signal.SIGKILL else None
        wait_for(lambda: server.health()["status"] != "ready")
        refusal = refusal or server.ask(False, "s", max_tokens=1)
        stream_events = streamed.result(PATIENCE_S).events
        lost = whole.result(PATIENCE_S)
    assert refusal.status == 503
    assert refusal.json["error"]["code"] == "engine_unavailable"
    assert refusal.headers["retry-after"]
    assert "[DONE]" not in stream_events
    assert cause in json.loads(stream_events[-1])["error"]["message"]
    assert lost.status == 503
    assert cause in lost.json["error"]["message"]
    assert cause in server.ask(False, "s").json["error"]["message"]
    server.wait_until("ready")
    assert server.ask(False, "s").json["choices"][0]["text"] == "short answer"
    assert not psutil.pid_exists(victim)
    # the counters outlive the engine process, and come with its next heartbeat
    wait_for(lambda: server.metric("netgain_steps_total") > steps, said="the counter of steps does not go on")
    assert server.health()["replicas"][0]["restarts"] == restarts + 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_waits_for_its_model_can_be_interrupted(number, tmp_path):
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / ".fetch.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # another process fetches
        starting = subprocess.Popen(
            [sys.executable, "-m", "netgain.cli.main", "serve", "--port", "0"],
            env={**os.environ, "NETGAIN_CACHE": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for(lambda: any(".fetch.lock" in file.path for file in psutil.Process(starting.pid).open_files()))
            time.sleep(0.2)  # it waits for the lock by now, as nearly always
            starting.send_signal(number)
            assert starting.wait(PATIENCE_S) == 130
        finally:
            starting.kill()
            starting.wait()


def test_records_that_find_no_room_harm_no_answer_and_are_counted(start_server, chain_model):
    options = ("--set", "engine.model.kernels=torch", "--records", "/dev/full")
    with start_server(str(chain_model.folder), *options) as server:
        assert server.metric("netgain_listener_failures_total") == 0
        for _ in range(2):
            assert server.ask(False, "s").json["choices"][0]["text"] == "short answer"
        wait_for(lambda: server.metric("netgain_listener_failures_total") == 2, said="lost records are not counted")
        assert len([line for line in server.lines if "No space left" in line]) == 1


def test_a_killed_server_takes_even_a_stopped_engine_along(start_server, chain_model):
    with start_server(str(chain_model.folder), "--set", "engine.model.kernels=torch") as server:
        engine = psutil.Process(server.engine_pid)
        engine.suspend()
        server.process.kill()
        server.process.wait()
        engine.wait(PATIENCE_S)


def test_a_taken_port_is_one_clear_line(chain_model, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["serve", str(chain_model.folder), "--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"netgain: port {port} on 127.0.0.1 is in use; stop what uses it, or choose another with --port\n"
    )


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["/nowhere/model"], "/nowhere/model"),
        (["default", "--set", "engine.cache.kv_token=5"], "did you mean 'kv_tokens'?"),
        (["default", "--set", "engine.cache.kv_tokens=many"], "engine.cache.kv_tokens"),
        (["default", "--set", "kv_tokens"], "NAME=VALUE"),
        (["default", "--config", "/nowhere.yaml"], "/nowhere.yaml"),
        (["default", "--host", "203.0.113.7"], "203.0.113.7"),
        (["default", "--host", "a..b"], "a..b"),
        (["default", "--records", "/"], "cannot append request records to /"),
        (["default", "--speculation", "magic"], "magic"),
    ],
)
def test_what_cannot_work_is_one_clear_line(arguments, names, capsys):
    assert run(["serve", *arguments, "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert names in error
    assert len(error.splitlines()) == 1


@pytest.mark.usefixtures("leaves_no_process")
def test_a_setting_that_only_the_engine_can_refuse_ends_the_start(chain_model, capsys):
    arguments = ["serve", str(chain_model.folder), "--port", "0", "--set", "engine.cache.kv_tokens=100000000000"]
    assert run(arguments) == 2
    assert "engine.cache" not in (error := capsys.readouterr().err)
    assert "cache.kv_tokens = 100000000000 needs" in error.splitlines()[-1]
