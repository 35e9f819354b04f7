"""An arm operated by the user's own shell commands: kubectl, helm, Slurm, ssh, anything that starts and stops a server."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from netgain.deciding.experiment.arm import Observed
from netgain.deciding.experiment.arms import keeper
from netgain.deciding.experiment.arms.health import health_failure
from netgain.deciding.experiment.arms.hooks import Hook, Hooks
from netgain.deciding.experiment.arms.reset import ask_reset
from netgain.deciding.experiment.arms.shell import run_to_its_end
from netgain.errors import Unavailable, UsageError
from netgain.measuring.client.endpoint import base_url
from netgain.secrecy import without_secrets, words_without_secrets

POLL_S = 0.2
PROBE_TIMEOUT_S = 5.0
STDERR_LINES = 10
_KILL_S = 5.0


class HookedArm:
    """Started and stopped by hooks. The stop hook also runs when netgain ends by whatever cause, kill -9 included.

    `flags`: what the engine is to be told in this arm, for the start hook (NETGAIN_FLAGS). `headers` go with every request
    (an API key).
    """

    def __init__(
        self, name: str, hooks: Hooks, flags: Sequence[str] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._hooks = hooks
        self._flags = tuple(flags)
        self.headers: Mapping[str, str] = headers or {}
        self._url = None if hooks.url is None else base_url(hooks.url.replace("{arm}", name))
        self._guard: subprocess.Popen[bytes] | None = None
        self._stop_errors: IO[bytes] | None = None
        self._observe_failure: str | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def url(self) -> str:
        if self._url is None:
            raise Unavailable(f"the {self._name} arm has no address: it was not started")
        return self._url

    @property
    def command(self) -> tuple[str, ...]:
        flags = shlex.join(words_without_secrets(self._flags))
        return (f"NETGAIN_FLAGS={flags}", "sh", "-c", without_secrets(self._hooks.start.run))

    @property
    def observe_failure(self) -> str | None:
        """Why the last look at the arm failed, if it did."""
        return self._observe_failure

    async def start(self) -> None:
        """Runs the start hook to its end. Raises Unavailable with its exit code and what it wrote to stderr."""
        await self.stop()
        if self._hooks.url is None:
            self._url = None
        self._guard = self._guarded()
        said = await self._run("start", self._hooks.start)
        if self._url is None:
            self._url = _told_url(said, self._name)

    async def ready(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        where = f"{self.url}{self._hooks.health}"
        async with aiohttp.ClientSession(headers=self.headers) as session:
            while True:
                patience_s = min(PROBE_TIMEOUT_S, max(0.1, deadline_s - time.monotonic()))
                failure = await health_failure(session, where, patience_s, self._name)
                if failure is None:
                    return
                if time.monotonic() >= deadline_s:
                    raise Unavailable(f"the {self._name} arm was not ready after {timeout_s:g} s: {where} {failure}")
                await asyncio.sleep(POLL_S)

    async def reset(self) -> str:
        if self._hooks.reset is None:
            return (await ask_reset(self.url, self.headers, self._hooks.engine)).says
        await self._run("reset", self._hooks.reset)
        return "reset by its hook"

    def observe(self) -> Observed | None:
        """Runs the observe hook and waits for it. None when there is none, it fails, or it does not print what is needed."""
        hook = self._hooks.observe
        if hook is None:
            return None
        self._observe_failure = None
        limit_s = self._hooks.timeout_s("observe")
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                code = run_to_its_end(hook.run, limit_s, self._environment("observe"), output, errors)
                output.seek(0)
                errors.seek(0)
                if code is None:
                    self._observe_failure = f"it took longer than {limit_s:g} s{_end_of(errors.read())}"
                elif code != 0:
                    self._observe_failure = f"it ended with code {code}{_end_of(errors.read())}"
                else:
                    return msgspec.json.decode(output.read(), type=Observed)
            except (OSError, msgspec.MsgspecError, RecursionError) as error:
                self._observe_failure = str(error)
        return None

    async def stop(self) -> None:
        """Runs the stop hook once after each `start`, also after one that failed. Raises Unavailable when it fails."""
        if self._guard is None:
            return
        guard, self._guard = self._guard, None
        errors, self._stop_errors = self._stop_errors, None
        assert guard.stdin is not None
        assert errors is not None
        limit_s = self._hooks.timeout_s("stop")
        guard.stdin.close()
        try:
            deadline_s = time.monotonic() + limit_s + _KILL_S
            while guard.poll() is None and time.monotonic() < deadline_s:
                await asyncio.sleep(POLL_S / 4)
        finally:  # when this wait is cancelled the keeper still lets the hook end within its limit
            code = guard.poll()
            with errors:
                errors.seek(0)
                told = errors.read()
        if code == 128 + signal.SIGKILL:
            raise Unavailable(f"the stop hook of the {self._name} arm took longer than {limit_s:g} s{_end_of(told)}")
        if code != 0:
            raise Unavailable(f"the stop hook of the {self._name} arm ended with code {code}{_end_of(told)}")

    def _guarded(self) -> "subprocess.Popen[bytes]":
        self._stop_errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `stop`)
        limit = str(self._hooks.timeout_s("stop"))
        guard = subprocess.Popen(
            (sys.executable, "-I", "-S", keeper.__file__, limit, "at-end", "sh", "-c", self._hooks.stop.run),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._stop_errors,
            env=self._environment("stop"),
            start_new_session=True,
            bufsize=0,
        )
        assert guard.stdin is not None
        guard.stdin.write((0).to_bytes(8, "big"))
        return guard

    def _tell_guard(self, group: int) -> None:
        """Which process group starts the server now (0: none): killed first where netgain ends before it does."""
        assert self._guard is not None
        assert self._guard.stdin is not None
        with suppress(OSError):  # a guard that is gone is told of by `stop`
            self._guard.stdin.write(group.to_bytes(8, "big"))

    async def _run(self, name: str, hook: Hook) -> str:
        """What the hook printed. Output goes to files: a pipe would wait for whatever the hook left running behind it."""
        limit_s = self._hooks.timeout_s(name)
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                "sh",
                "-c",
                hook.run,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=self._environment(name),
                start_new_session=True,
            )
            try:
                if name == "start":
                    self._tell_guard(process.pid)
                async with asyncio.timeout(limit_s):
                    code = await process.wait()
            except TimeoutError:
                errors.seek(0)
                told = _end_of(errors.read())
                raise Unavailable(
                    f"the {name} hook of the {self._name} arm took longer than {limit_s:g} s{told}"
                ) from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
                if name == "start":
                    self._tell_guard(0)
            errors.seek(0)
            output.seek(0)
            if code != 0:
                told = _end_of(errors.read())
                raise Unavailable(f"the {name} hook of the {self._name} arm ended with code {code}{told}")
            return output.read().decode(errors="replace")

    def _environment(self, hook: str) -> dict[str, str]:
        known = {"NETGAIN_ARM": self._name, "NETGAIN_HOOK": hook, "NETGAIN_FLAGS": shlex.join(self._flags)}
        if self._url is not None:
            known["NETGAIN_URL"] = self._url
            if (port := urlsplit(self._url).port) is not None:
                known["NETGAIN_PORT"] = str(port)
        return {**os.environ, **self._hooks.environment, **known}


def _told_url(output: str, arm: str) -> str:
    lines = output.strip().splitlines()
    told: Any = None
    with suppress(IndexError, msgspec.DecodeError, RecursionError):
        told = msgspec.json.decode(lines[-1])
    url = told.get("url") if isinstance(told, dict) else None
    if not isinstance(url, str):
        raise UsageError(
            f'the hooks of the {arm} arm name no url, and the last line of its start hook is not {{"url": "http://..."}}: '
            f"{without_secrets(lines[-1] if lines else 'nothing')[:200]!r}"
        )
    try:
        return base_url(url)
    except UsageError as error:
        raise UsageError(f"the start hook of the {arm} arm printed a url that is none: {error}") from error


def _end_of(errors: bytes) -> str:
    lines = without_secrets(errors.decode(errors="replace")).strip().splitlines()[-STDERR_LINES:]
    return (
        ". The end of its stderr:\n" + "\n".join(f"  {line}" for line in lines)
        if lines
        else "; it wrote nothing to stderr"
    )
