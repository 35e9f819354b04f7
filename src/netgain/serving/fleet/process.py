"""An operating-system process of the fleet: its own group, its last log lines kept, its end put into words."""

import asyncio
import collections
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Self

logger = logging.getLogger("netgain.engine")

_TAIL_LINES = 40
_LINE_CHARACTERS = 2000


class ManagedProcess:
    """Started by `launch`; `stop` or `kill` ends it together with everything it started."""

    def __init__(self, process: asyncio.subprocess.Process, what: str) -> None:
        self.pid = process.pid
        self._what = what
        self._process = process
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._reader = asyncio.create_task(self._read_log())

    @classmethod
    async def launch(cls, command: Sequence[str], what: str) -> Self:
        """Run `command` in a session of its own (so that a terminal's Ctrl-C reaches only us); `what` names it in messages."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return cls(process, what)

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    @property
    def tail(self) -> tuple[str, ...]:
        """Its last log lines."""
        return tuple(self._tail)

    async def wait(self) -> str:
        """Wait for the end; says how it came ("engine process 4711 was killed by signal 9 (SIGKILL)")."""
        code = await self._process.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._reader), 0.5)  # a grandchild may hold the pipe open
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = "unknown"
            return f"{self._what} {self.pid} was killed by signal {-code} ({name})"
        return f"{self._what} {self.pid} exited with code {code}"

    async def stop(self, timeout_s: float) -> None:
        """SIGTERM, and SIGKILL to the group when it has not ended after `timeout_s`."""
        if self.running:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), timeout_s)
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL to the group, and wait until the process is gone."""
        self._signal(signal.SIGKILL)
        await self._process.wait()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    def _signal(self, number: signal.Signals) -> None:
        # the group outlives its leader while children of it run; its id is the leader's pid until then
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _read_log(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while data := await self._process.stdout.read(4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._keep(line)
            rest = rest[:_LINE_CHARACTERS]
        if rest:
            self._keep(rest)

    def _keep(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()[:_LINE_CHARACTERS]
        if text:
            self._tail.append(text)
            logger.info("%s", text)
