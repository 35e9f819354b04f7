"""A real server process over the chain model."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.waiting import PATIENCE_S

pytest.importorskip("torch")

_START_S = 2 * PATIENCE_S


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        """The data of a stream's events."""
        assert self.headers["content-type"].startswith("text/event-stream")
        blocks = self.body.decode("utf-8", "strict").split("\n\n")
        assert blocks.pop() == "", "the stream ends inside an event"
        assert all(block.startswith("data: ") for block in blocks)
        return [block.removeprefix("data: ") for block in blocks]

    @property
    def chunks(self) -> list[Any]:
        """The chunks of a complete stream."""
        events = self.events
        assert events[-1] == "[DONE]"
        return [json.loads(event) for event in events[:-1]]


class Server:
    """A `netgain serve` process. `lines` holds what it printed so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self._wait_for_url()

    @property
    def engine_pid(self) -> int:
        return int(self.health()["replicas"][0]["pid"])

    def health(self) -> dict[str, Any]:
        return dict(self.send("/health").json)

    def send(
        self,
        path: str,
        body: bytes | None = None,
        method: str | None = None,
        timeout_s: float = PATIENCE_S,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Answer:
        """One HTTP request, whatever its status."""
        try:
            request = Request(self.url + path, body, dict(headers), method=method)
            with urlopen(request, timeout=timeout_s) as response:
                return Answer(response.status, response.headers, response.read())
        except HTTPError as error:
            return Answer(error.code, error.headers, error.read())

    def post(self, path: str, **fields: Any) -> Answer:
        return self.send(path, json.dumps(fields).encode())

    def ask(self, chat: bool, prompt: str, **fields: Any) -> Answer:
        """Greedy, on either endpoint; a chat's template gives the last message as it is."""
        fields = {"temperature": 0, "max_tokens": 64, **fields}
        if chat:
            return self.post("/v1/chat/completions", messages=[{"role": "user", "content": prompt}], **fields)
        return self.post("/v1/completions", prompt=prompt, **fields)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        lines = self.send("/metrics").body.decode().splitlines()
        values = [line.rsplit(" ", 1)[1] for line in lines if line.split("{")[0].split(" ")[0] == name]
        assert values, f"no metric {name}"
        return sum(map(float, values))

    def wait_until(self, state: str, timeout_s: float = PATIENCE_S) -> float:
        """Seconds until /health says `state`."""
        started = time.monotonic()
        while time.monotonic() - started < timeout_s:
            if self.health()["status"] == state:
                return time.monotonic() - started
            time.sleep(0.05)
        raise AssertionError(f"not {state} within {timeout_s} s: {self.health()}; log: {self.lines[-20:]}")

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        """Signal the process and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def ending(self) -> list[str]:
        """All that an ended process printed behind its URL."""
        self._reader.join()
        return self.lines[self.lines.index(f"serving at {self.url}/v1") + 1 :]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def _wait_for_url(self) -> str:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            for line in self.lines:
                if line.startswith("serving at "):
                    return line.removeprefix("serving at ").removesuffix("/v1")
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError("the server did not start: " + "\n".join(self.lines))


@contextmanager
def _running_server(*arguments: str, **environment: str) -> Iterator[Server]:
    """`netgain serve` on a free port until the block ends, with these environment variables on top."""
    command = [sys.executable, "-m", "netgain.cli.main", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | environment
    )
    server = None
    try:
        server = Server(process)
        yield server
    finally:
        if server is not None:  # one that has ended already was the test's to judge
            assert process.poll() is not None or server.stop() == 0, server.lines[-20:]
        elif process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def start_server() -> Callable[..., AbstractContextManager[Server]]:
    """Starts a server with the given arguments, for tests that need their own."""
    return _running_server


@pytest.fixture(scope="session")
def server_options(chain_model: Any) -> list[str]:
    """The chain model with two places in the batch, a queue of six, and short heartbeats."""
    settings = (
        "engine.model.kernels=torch",
        "engine.model.threads=1",
        "engine.scheduler.max_running=2",
        "engine.scheduler.max_waiting=6",
        "engine.step_cost.refresh=never",
        "fleet.hang_timeout_s=60",  # the engine of a busy machine may be silent for seconds
        "fleet.heartbeat_s=0.1",
        "limits.max_body_bytes=65536",
        "limits.max_choices=4",
    )
    return [str(chain_model.folder), *(item for setting in settings for item in ("--set", setting))]


@pytest.fixture(scope="session")
def server(server_options: list[str]) -> Iterator[Server]:
    """One for all tests that leave it as they found it."""
    with _running_server(*server_options) as started:
        yield started
