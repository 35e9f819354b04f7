"""vLLM's CPU build as an arm beside netgain, started from the Python it is installed in and bound to every core."""

import asyncio
import ctypes
import glob
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import msgspec
import psutil

from netgain.deciding.experiment.arm import Observed
from netgain.deciding.experiment.launched import free_port
from netgain.errors import Unavailable

KV_GIB = 1
MAX_MODEL_LEN = 2048
POLL_S = 0.2
PROBE_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 5.0
_PR_SET_PDEATHSIG = 1
# What vLLM's CPU guide preloads: an allocator, and the OpenMP library that its wheel depends on.
_ALLOCATORS = ("/usr/lib/*/libtcmalloc_minimal.so.4", "/usr/lib64/libtcmalloc_minimal.so.4")
_CAUSE = re.compile(r"\b\w*(?:Error|Exception|Interrupt): .+|Illegal instruction|Segmentation fault")


class LaunchedVllm:
    """`vllm serve FOLDER` as a child process in a session of its own, its output in a log file."""

    name = "vllm"

    def __init__(self, python: Path, folder: Path, dtype: str, served_name: str, log: Path) -> None:
        self._python = python
        self._served = served_name
        self._folder = folder
        self._dtype = dtype
        self._log = log
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._family: dict[int, psutil.Process] = {}

    @property
    def url(self) -> str:
        if self._port is None:
            raise Unavailable("the vLLM server has no address: it was not started")
        return f"http://127.0.0.1:{self._port}"

    @property
    def command(self) -> tuple[str, ...]:
        options = ("--dtype", self._dtype, "--max-model-len", str(MAX_MODEL_LEN), "--served-model-name", self._served)
        return ("vllm", "serve", str(self._folder), *options, "--host", "127.0.0.1")

    @property
    def environment(self) -> dict[str, str]:
        """What is set beyond this process's own environment. As shipped, vLLM would leave a core unused."""
        return {
            "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
            "LD_PRELOAD": ":".join(self._preloaded()),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }

    async def start(self) -> None:
        self._port = free_port()
        module = [str(self._python), "-m", "vllm.entrypoints.cli.main", *self.command[1:], "--port", str(self._port)]
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    module,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._log.parent,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                    preexec_fn=_end_with_parent if sys.platform == "linux" else None,
                )
            except OSError as error:
                raise Unavailable(f"vLLM could not be started with {self._python} ({error})") from error

    async def ready(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self._process is not None:
            self._note_family()
            if (code := self._process.poll()) is not None:
                raise Unavailable(f"vLLM ended with code {code} while starting: {self._cause()}")
            if await self._get("/health") is not None:
                return
            if time.monotonic() >= deadline_s:
                raise Unavailable(
                    f"vLLM was not ready after {timeout_s:g} s; allow more time. Its log: {self._cause()}"
                )
            await asyncio.sleep(POLL_S)
        raise Unavailable("vLLM was not started")

    async def version(self) -> str | None:
        """What the server calls itself, or None."""
        body = await self._get("/version")
        try:
            return None if body is None else str(msgspec.json.decode(body)["version"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return None

    async def reset(self) -> str:
        return "cold at the start of each block: every block asks under a cache salt of its own"

    def observe(self) -> Observed | None:
        self._note_family()
        cpu_s, resident, count = 0.0, 0, 0
        for process in self._family.values():
            try:
                times = process.cpu_times()
                resident += process.memory_info().rss
            except psutil.Error:
                continue
            cpu_s += times.user + times.system
            count += 1
        return Observed(cpu_s=cpu_s, resident_bytes=resident, processes=count) if count else None

    async def stop(self) -> None:
        if self._process is None:
            return
        self._note_family()
        process, self._process = self._process, None
        members = [member for member in self._family.values() if member.pid != process.pid]
        try:
            _signal_group(process.pid, signal.SIGTERM)
            deadline_s = time.monotonic() + STOP_TIMEOUT_S
            while time.monotonic() < deadline_s and (process.poll() is None or any(map(_alive, members))):
                await asyncio.sleep(POLL_S / 2)
        finally:  # also when this wait is cancelled: nothing is left behind
            _signal_group(process.pid, signal.SIGKILL)
            for member in members:
                try:
                    member.kill()
                except psutil.Error:
                    continue
            try:
                process.wait(KILL_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                raise Unavailable(f"the vLLM server (pid {process.pid}) survived SIGKILL") from error
            psutil.wait_procs(members, timeout=KILL_TIMEOUT_S)
            self._family = {}

    def _preloaded(self) -> list[str]:
        """The libraries among those that vLLM recommends which this machine has."""
        allocators = [path for pattern in _ALLOCATORS for path in sorted(glob.glob(pattern))]  # noqa: PTH207
        openmp = self._python.parent.parent / "lib" / "libiomp5.so"
        return [*allocators[:1], *([str(openmp)] if openmp.is_file() else [])]

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

    async def _get(self, path: str) -> bytes | None:
        """The body of an answer with status 200, else None."""
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(self.url + path) as response:
                return await response.read() if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None

    def _cause(self) -> str:
        """The first error that the log names (the last ones only say that something failed), else its last line."""
        try:
            lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        except OSError as error:
            return f"its log {self._log} cannot be read ({error})"
        found = next((match for line in lines if "WARNING" not in line and (match := _CAUSE.search(line))), None)
        return found.group() if found else lines[-1] if lines else "its log is empty"


def _alive(member: psutil.Process) -> bool:
    try:
        return member.is_running() and member.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _end_with_parent() -> None:
    """Runs in the child before exec: the kernel sends it SIGTERM when the thread that started it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
