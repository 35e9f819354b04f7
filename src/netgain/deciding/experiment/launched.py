"""A server as an arm: started on its own port, watched, and ended together with everything that it started."""

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import aiohttp
import msgspec
import psutil

from netgain.deciding.experiment.arm import Observed
from netgain.errors import NetgainError, Unavailable, UsageError

POLL_S = 0.1
PROBE_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 10.0
KILL_TIMEOUT_S = 5.0
LOG_TAIL_LINES = 20
_PR_SET_PDEATHSIG = 1
_SAID = "netgain: "  # how the command begins its one line about a failure


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is started and what is known of its ways.

    `command(port)` is the command line; `shown` is how a user would write it. `environment` is set on top of this
    process's own. `health` is the path that answers 200 once requests are served. `explain(code, log)` says in the
    program's own words why it ended with `code` while starting; None where its log tells nothing special.
    """

    command: Callable[[int], Sequence[str]]
    shown: tuple[str, ...]
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    health: str = "/health"
    explain: Callable[[int, str], NetgainError | None] = lambda code, log: None


def launched_netgain(name: str, flags: Sequence[str], log: Path, executable: str = sys.executable) -> "LaunchedServer":
    """`netgain serve FLAGS` as an arm."""

    def explain(code: int, text: str) -> NetgainError | None:
        said = [line.removeprefix(_SAID) for line in text.splitlines() if line.startswith(_SAID)]
        kind = UsageError if code == UsageError.exit_code else Unavailable
        return kind(f"the {name} server did not start: {said[-1]} (log: {log})") if said else None

    return LaunchedServer(
        name,
        Program(
            command=lambda port: (executable, "-m", "netgain.cli.main", "serve", *flags, "--port", str(port)),
            shown=("netgain", "serve", *flags),
            explain=explain,
        ),
        log,
    )


class LaunchedServer:
    """A program as a child process in a session of its own, its output in a log file.

    The child is told to end when this process dies by whatever cause (on Linux), and `stop` ends the whole process
    group, then any descendant that left it.
    """

    def __init__(self, name: str, program: Program, log: Path) -> None:
        self._name = name
        self._program = program
        self._log = log
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._family: dict[int, psutil.Process] = {}

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
        return self._program.shown

    async def start(self) -> None:
        mode = "wb" if self._port is None else "ab"  # the log of a later start is added
        self._port = free_port()
        arguments = list(self._program.command(self._port))
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
                    arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._program.environment},
                    start_new_session=True,
                    preexec_fn=_end_with_parent if sys.platform == "linux" else None,
                )
            except OSError as error:
                raise Unavailable(f"the {self._name} arm could not be started ({error}): {arguments[0]}") from error

    async def ready(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)) as session:
            while True:
                if self._process is None:
                    raise Unavailable(f"the {self._name} arm was not started")
                if (code := self._process.poll()) is not None:
                    raise self._refused(code)
                if await self._answers(session):
                    self._note_family()
                    return
                if time.monotonic() >= deadline_s:
                    raise Unavailable(
                        f"the {self._name} server was not ready after {timeout_s:g} s; allow more time or look at its "
                        f"log.{self._tail()}"
                    )
                await asyncio.sleep(POLL_S)

    async def reset(self) -> str:
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
        if self._process is None:
            return
        self._note_family()
        process, self._process = self._process, None
        _signal_group(process.pid, signal.SIGTERM)
        self._signal_family(signal.SIGCONT)  # the frozen would not hear it
        try:
            await _until_gone(process, self._family.values(), STOP_TIMEOUT_S)
        finally:  # also when this wait is cancelled: nothing is left behind
            _signal_group(process.pid, signal.SIGKILL)
            for member in self._family.values():
                try:
                    member.kill()
                except psutil.Error:
                    continue
            try:
                process.wait(KILL_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                raise Unavailable(f"the {self._name} server (pid {process.pid}) survived SIGKILL") from error
            psutil.wait_procs(list(self._family.values()), timeout=KILL_TIMEOUT_S)
            self._family = {}

    def _signal_family(self, number: signal.Signals) -> None:
        for member in self._family.values():
            try:
                member.send_signal(number)
            except psutil.Error:
                continue

    def _note_family(self) -> None:
        """Remember every descendant, so that one that outlives its parent is still found."""
        if self._process is None:
            return
        try:
            root = psutil.Process(self._process.pid)
            for member in (root, *root.children(recursive=True)):
                self._family.setdefault(member.pid, member)
        except psutil.Error:
            return

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self.url}{self._program.health}") as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    def _refused(self, code: int) -> NetgainError:
        """Why the server ended while starting: in its own words, if it said them."""
        ended = Unavailable(f"the {self._name} server ended with code {code} while starting.{self._tail()}")
        try:
            return self._program.explain(code, self._log.read_text(errors="replace")) or ended
        except OSError:
            return ended

    def _tail(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        except OSError:
            return f" Its log {self._log} cannot be read."
        return (
            f" The end of {self._log}:\n" + "\n".join(f"  {line}" for line in lines) if lines else " Its log is empty."
        )


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


async def _until_gone(process: "subprocess.Popen[bytes]", family: Iterable[psutil.Process], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    members = [member for member in family if member.pid != process.pid]
    while time.monotonic() < deadline_s:
        if process.poll() is not None and not any(_alive(member) for member in members):
            return
        await asyncio.sleep(POLL_S / 2)


def _alive(member: psutil.Process) -> bool:
    try:
        return member.is_running() and member.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _end_with_parent() -> None:
    """Runs in the child before exec: the kernel sends it SIGTERM when the thread that started it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
