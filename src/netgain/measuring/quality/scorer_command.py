"""A scorer of the user's own: a shell command that reads one answer as JSON and prints a score between 0 and 1."""

import asyncio
import math
import os
import signal

import msgspec

from netgain.errors import NetgainError, UsageError
from netgain.measuring.quality.tasks import Task

OUTPUT_BYTES = 65536
_SHOWN = 200  # characters of the command's own words in a message


class ScorerFailed(NetgainError):
    """The command gave no usable score for one answer; the message names the cause."""


class ScorerCommand:
    """Runs once per answer. Its standard input is an object with id, prompt, messages, answer, expected and category."""

    def __init__(self, command: str, timeout_s: float = 30.0) -> None:
        if not command.strip():
            raise UsageError("the scorer command is empty; give a shell command that prints a score between 0 and 1")
        if not timeout_s > 0.0:
            raise UsageError(f"the scorer's time limit is {timeout_s} s; it must be positive")
        self.command, self.timeout_s = command, timeout_s

    async def score(self, task: Task, answer: str) -> float:
        """Raises ScorerFailed. No process is left behind, also when cancelled."""
        asked = {
            "id": task.id,
            "prompt": task.prompt,
            "messages": task.messages,
            "answer": answer,
            "expected": task.expected,
            "category": task.category,
        }
        process = await asyncio.create_subprocess_shell(
            self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # so that what the shell starts can be ended with it
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                said, complained = await _talk(process, msgspec.json.encode(asked))
                code = await process.wait()
        except TimeoutError:
            raise ScorerFailed(f"the scorer gave no score within {self.timeout_s:g} s") from None
        finally:
            _end(process)
            await process.wait()
        if code != 0:
            raise ScorerFailed(f"the scorer ended with code {code}: {_shown(complained or said)}")
        return read_score(said)


def read_score(said: bytes) -> float:
    """The last word that a scorer printed, as a number. Raises ScorerFailed."""
    if len(said) > OUTPUT_BYTES:
        raise ScorerFailed(f"the scorer printed more than {OUTPUT_BYTES} bytes; it must print a number")
    lines = said.split()
    try:
        score = float(lines[-1]) if lines else math.nan
    except ValueError:
        score = math.nan
    if not 0.0 <= score <= 1.0:
        raise ScorerFailed(f"the scorer printed {_shown(said)}; it must print a number between 0 and 1")
    return score


async def _talk(process: asyncio.subprocess.Process, asked: bytes) -> tuple[bytes, bytes]:
    """Write the question while reading what comes, so that neither side waits for the other for ever."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None

    async def write(pipe: asyncio.StreamWriter) -> None:
        try:
            pipe.write(asked)
            await pipe.drain()
            pipe.close()
        except (BrokenPipeError, ConnectionResetError):  # a scorer need not read all of it
            pass

    _, said, complained = await asyncio.gather(write(process.stdin), _read(process.stdout), _read(process.stderr))
    return said, complained


async def _read(stream: asyncio.StreamReader) -> bytes:
    """All that comes, of which one byte more than the limit is kept."""
    kept = b""
    while piece := await stream.read(65536):
        kept += piece[: OUTPUT_BYTES + 1 - len(kept)]
    return kept


def _end(process: asyncio.subprocess.Process) -> None:
    """Everything in the command's own session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _shown(said: bytes) -> str:
    text = said[-_SHOWN * 4 :].decode("utf-8", "replace").strip()
    return repr(text[-_SHOWN:]) if text else "nothing"
