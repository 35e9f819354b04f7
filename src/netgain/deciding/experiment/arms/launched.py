"""A server as an arm: started on its own port under a keeper, watched, and ended together with everything that it started."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import aiohttp
import msgspec
import psutil

from netgain.deciding.experiment.arm import Observed
from netgain.deciding.experiment.arms import keeper
from netgain.deciding.experiment.arms.beyond import Beyond
from netgain.deciding.experiment.arms.health import health_failure
from netgain.deciding.experiment.arms.port import check_free, free_port
from netgain.deciding.experiment.arms.reset import Reset
from netgain.errors import NetgainError, Unavailable, UsageError
from netgain.secrecy import without_secrets, words_without_secrets

POLL_S = 0.1
PROBE_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 10.0
KILL_TIMEOUT_S = 5.0
LOG_TAIL_LINES = 20
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is started and what is known of its ways.

    `command(port)` is the command line; `shown` is how a user would write it. `environment` is set on top of this
    process's own. `health` is the path that answers 200 once requests are served. `explain(code, log)` says in the
    program's own words why it ended with `code` while starting; None where its log tells nothing special. `shutdown_s`:
    how long it may take to end when asked to. `reset(url, headers)` empties its caches (None: only salts keep blocks apart), but
    for what `outlives_reset` says.
    """

    command: Callable[[int], Sequence[str]]
    shown: tuple[str, ...]
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    health: str = "/health"
    explain: Callable[[int, str], NetgainError | None] = lambda code, log: None
    shutdown_s: float = STOP_TIMEOUT_S
    reset: Callable[[str, Mapping[str, str]], Awaitable[Reset]] | None = None
    outlives_reset: str | None = None


class LaunchedServer:
    """A program as a child of a keeper process, in a session of its own, its output in a log file.

    The keeper ends the server and all its descendants when this process ends by whatever cause, kill -9 included.
    `port`: the one to use at every start (None: a free one).
    """

    def __init__(self, name: str, program: Program, log: Path, port: int | None = None) -> None:
        self._name = name
        self._program = program
        self._log = log
        self._pinned = port
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._family: dict[int, psutil.Process] = {}
        self.headers: Mapping[str, str] = {}  # that go with every request (an API key)
        self.beyond: Beyond | None = None  # what it keeps apart from its process
        self.freezes = False  # whether it is to be frozen while another arm is loaded

    @property
    def name(self) -> str:
        return self._name

    @property
    def url(self) -> str:
        if self._port is None:
            raise Unavailable(f"the {self._name} arm has no address: it was not started")
        return f"http://127.0.0.1:{self._port}"

    @property
    def command(self) -> tuple[str, ...]:
        shown = self._program.shown
        return words_without_secrets(shown if self.beyond is None else self.beyond.shown(shown))

    @property
    def log(self) -> str:
        """What the server has written since its first start; empty where the file cannot be read."""
        try:
            return self._log.read_text(errors="replace")
        except OSError:
            return ""

    @property
    def outlives_reset(self) -> str | None:
        """What of its caches a reset does not empty, in words; None where nothing is known to remain."""
        return self._program.outlives_reset

    async def start(self) -> None:
        mode = "wb" if self._port is None else "ab"  # the log of a later start is added
        if self._pinned is not None:
            check_free(self._pinned, self._name)
        if self.beyond is not None:
            await asyncio.to_thread(self.beyond.begin)
        self._port = free_port() if self._pinned is None else self._pinned
        arguments = list(self._program.command(self._port))
        environment = {**os.environ, **self._program.environment}
        if shutil.which(arguments[0], path=environment.get("PATH")) is None:
            raise Unavailable(f"the {self._name} arm could not be started: there is no program {arguments[0]}")
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            opened = self._log.open(mode)
        except OSError as error:
            raise UsageError(
                f"cannot write {self._log.parent} ({error.strerror or error}); name another folder for the output"
            ) from error
        with opened as log:
            try:
                self._process = subprocess.Popen(
                    (sys.executable, "-I", "-S", keeper.__file__, str(self._program.shutdown_s), "run", *arguments),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    bufsize=0,
                )
                self._tell(self._process)
            except OSError as error:
                raise Unavailable(f"the {self._name} arm could not be started ({error}): {arguments[0]}") from error

    async def ready(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        where = f"{self.url}{self._program.health}"
        async with aiohttp.ClientSession(headers=self.headers) as session:
            while True:
                if self._process is None:
                    raise Unavailable(f"the {self._name} arm was not started")
                patience_s = min(PROBE_TIMEOUT_S, max(0.1, deadline_s - time.monotonic()))
                try:
                    failure = await health_failure(session, where, patience_s, self._name)
                finally:
                    if (code := self._process.poll()) is not None:  # asked last: another server may answer at this port
                        raise self._refused(code)
                if failure is None:
                    self._note_family()
                    return
                if time.monotonic() >= deadline_s:
                    raise Unavailable(
                        f"the {self._name} server was not ready after {timeout_s:g} s; allow more time or look at its "
                        f"log.{self._tail()}"
                    )
                await asyncio.sleep(POLL_S)

    async def reset(self) -> str:
        if self._program.reset is not None:
            says = (await self._program.reset(self.url, self.headers)).says
            return says if self.outlives_reset is None else f"{says}; {self.outlives_reset}"
        return "cold at the start of each block: every block asks under a cache salt of its own"

    def pause(self) -> None:
        """Freeze every process (SIGSTOP), for servers that burn a core while idle. `resume` or `stop` thaws them."""
        self._note_family()
        self._signal_family(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_family(signal.SIGCONT)

    def observe(self) -> Observed | None:
        self._note_family()
        cpu_s, resident, count = 0.0, 0, 0
        for process in self._family.values():
            try:
                times = process.cpu_times()
                cpu_s += times.user + times.system
                resident += process.memory_info().rss
                count += 1
            except psutil.Error:
                continue
        return Observed(cpu_s=cpu_s, resident_bytes=resident, processes=count) if count else None

    async def stop(self) -> None:
        try:
            await self._end()
        finally:
            if self.beyond is not None:
                await asyncio.to_thread(self.beyond.end)

    async def _end(self) -> None:
        if self._process is None:
            return
        self._note_family()
        process, self._process = self._process, None
        _end_lifeline(process)
        try:
            await _until_gone(process, self._program.shutdown_s + KILL_TIMEOUT_S)
        finally:  # also when this wait is cancelled: nothing is left behind
            if process.poll() is None:
                process.send_signal(signal.SIGUSR1)  # the keeper kills all of them at once
                try:
                    process.wait(KILL_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
            self._signal_family(signal.SIGKILL)  # those whose keeper was killed
            process.wait(KILL_TIMEOUT_S)
            _, alive = psutil.wait_procs(list(self._family.values()), timeout=KILL_TIMEOUT_S)
            self._family = {}
        if alive:
            pids = ", ".join(str(member.pid) for member in alive)
            raise Unavailable(f"processes of the {self._name} server survived SIGKILL: {pids}")

    def _tell(self, process: "subprocess.Popen[bytes]") -> None:
        """The keeper's first input: the variables of the server's environment, which `ps` must not show."""
        parts = [f"{name}={value}" for name, value in self._program.environment.items()]
        text = "\0".join(parts).encode("utf-8", "surrogateescape")
        assert process.stdin is not None
        process.stdin.write(len(text).to_bytes(8, "big") + text)

    def _signal_family(self, number: signal.Signals) -> None:
        for member in self._family.values():
            try:
                member.send_signal(number)
            except psutil.Error:
                continue

    def _note_family(self) -> None:
        """Remember every descendant of the keeper, so that one that outlives both is still found."""
        if self._process is None:
            return
        try:
            for member in psutil.Process(self._process.pid).children(recursive=True):
                self._family.setdefault(member.pid, member)
        except psutil.Error:
            return

    def _refused(self, code: int) -> NetgainError:
        """Why the server ended while starting: in its own words, if it said them."""
        by = f"was ended by {_signal_name(code - 128)}" if code > 128 else f"ended with code {code}"
        ended = Unavailable(f"the {self._name} server {by} while starting.{self._tail()}")
        return self._program.explain(code, self.log) or ended

    def _tail(self) -> str:
        lines = self.log.splitlines()[-LOG_TAIL_LINES:]
        if not lines:
            return f" Its log {self._log} is empty or cannot be read."
        shown = (f"  {without_secrets(_COLOURS.sub('', line))}" for line in lines)
        return f" The end of {self._log}:\n" + "\n".join(shown)


def _end_lifeline(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        process.stdin.close()


async def _until_gone(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and process.poll() is None:
        await asyncio.sleep(POLL_S / 2)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
