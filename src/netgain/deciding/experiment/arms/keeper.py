"""A process of its own between netgain and a server that it started: when netgain is gone, by whatever cause, so is the server.

Run as a script: `python -I -S keeper.py GRACE_S run COMMAND...` keeps COMMAND running until the end and gives it GRACE_S to
end when asked; `... GRACE_S at-end COMMAND...` runs it at the end and gives it GRACE_S. Standard input is the lifeline: it
begins with the variables to add to the command's environment (a length of 8 bytes, then NAME=VALUE parts with NUL between
them), and its end means that netgain ended or wants the command to end. In between come process groups, 8 bytes each: the
last one, unless it is 0, is killed before the command at the end runs, which it would otherwise outlive.

On Linux orphans of the command become children of this process, so that also those in sessions and process groups of their
own are found. Imports as little as it can (no pathlib), since an arm waits for it.
"""

import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CANNOT_EXECUTE = 127
_POLL_S = 0.05


def main() -> int:
    """The server's exit code; 128 + n when signal n ended it. Ends only after every descendant has."""
    grace_s, at_end, command = float(sys.argv[1]), sys.argv[2] == "at-end", sys.argv[3:]
    environment = _read_environment()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    told = {"end": False, "now": False}
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: told.update(end=True))
    signal.signal(signal.SIGUSR1, lambda *_: told.update(end=True, now=True))
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    server = None if at_end else _start(command, environment)
    code: int | None = None
    groups = b""
    while code is None and not told["end"]:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        if 0 in ready:
            part = os.read(0, 4096)
            groups += part
            told["end"] = told["end"] or not part
        code = _reap(server, code)
    if server is None:
        if unfinished := int.from_bytes(groups[-8:], "big"):
            _signal_group(unfinished, signal.SIGKILL)
        server = _start(command, environment)
    elif code is None:
        _signal_group(server, signal.SIGCONT)
        _signal_group(server, signal.SIGTERM)
        for pid in descendants():  # the frozen would not hear it
            _signal(pid, signal.SIGCONT)
    if code is None:
        code = _wait(server, told, time.monotonic() + grace_s)
    return _clear(server, code)


def _start(command: list[str], environment: dict[str, str]) -> int:
    """The process id of the started command."""
    server = os.fork()
    if server == 0:
        _become(command, environment)
    return server


def _become(command: list[str], environment: dict[str, str]) -> None:
    """The forked child: never returns."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvpe(command[0], command, {**os.environ, **environment})
    except OSError as error:
        os.write(2, f"cannot execute {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(_CANNOT_EXECUTE)


def _wait(server: int, told: dict[str, bool], until_s: float) -> int | None:
    """Until the server and its descendants are gone, told otherwise, or time is up."""
    code: int | None = None
    asked: set[int] = set()
    while time.monotonic() < until_s and not told["now"]:
        code = _reap(server, code)
        if code is not None:
            left = descendants()
            if not left:
                break
            for pid in left - asked:  # its parent is gone, so nothing else will tell it
                _signal(pid, signal.SIGTERM)
            asked |= left
        time.sleep(_POLL_S)
    return code


def _clear(server: int, code: int | None) -> int:
    """Kill what is left, again until nothing appears: a process may fork while others are killed."""
    if not os.path.isdir("/proc"):  # noqa: PTH112
        _signal_group(server, signal.SIGKILL)
    for _ in range(100):
        left = descendants() | (set() if code is not None else {server})
        for pid in left:
            _signal(pid, signal.SIGKILL)
        code = _reap(server, code)
        if not left and code is not None:
            break
        time.sleep(_POLL_S / 5)
    return _CANNOT_EXECUTE if code is None else code


def _reap(server: int | None, code: int | None) -> int | None:
    """Collect everything that ended; the server's exit code if it is among them, else `code`."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == server:
            ended = os.waitstatus_to_exitcode(status)
            code = ended if ended >= 0 else 128 - ended


def descendants() -> set[int]:
    """Living processes below this one; empty where the system has no /proc (the server's group is signalled anyway)."""
    parents: dict[int, int] = {}
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return set()
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != b"Z":
            parents[pid] = int(parent)
    found = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        if not more:
            return found - {os.getpid()}
        found |= more


def _read_environment() -> dict[str, str]:
    length = int.from_bytes(_read(8), "big")
    parts = [part.decode("utf-8", "surrogateescape") for part in _read(length).split(b"\0") if part]
    return dict(part.split("=", 1) for part in parts)


def _read(size: int) -> bytes:
    text = b""
    while len(text) < size:
        part = os.read(0, size - len(text))
        if not part:  # netgain is gone already
            os._exit(0)
        text += part
    return text


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        _signal(pid, number)


if __name__ == "__main__":
    os._exit(main())
