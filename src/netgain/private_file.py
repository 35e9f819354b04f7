"""Files with secrets: readable by their owner alone, replaced as a whole, changed by one process at a time."""

import contextlib
import fcntl
import glob
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from netgain.errors import UsageError

_MAX_BYTES = 16 << 20
_PART = ".part"
PATIENCE_S = 10.0  # with another process that changes the file
_TRIES_EVERY_S = 0.005


def read_private(path: Path, what: str, hint: str = "") -> bytes:
    """The file's bytes. Raises UsageError, naming it as `what`: missing (with the `hint` how to make it), no plain file, open
    to other users, too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not be waited for
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MAX_BYTES + 1) if stat.S_ISREG(mode) else b""
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror}{hint}") from error
    if not stat.S_ISREG(mode):
        raise UsageError(f"the {what} {path} is no plain file")
    if mode & 0o077:
        raise UsageError(
            f"the {what} {path} has mode {stat.S_IMODE(mode):04o}, so other users have access to it: chmod 600 {path}"
        )
    if len(data) > _MAX_BYTES:
        raise UsageError(f"the {what} {path} is damaged (it is larger than {_MAX_BYTES} bytes)")
    return data


def replace_private(path: Path, data: bytes, what: str, wipe: bool = False) -> None:
    """Replace the file at once, whenever the writer is killed: a reader sees the old bytes or the new ones. To be called with
    `locked` held; what killed writers left beside the file is removed. `wipe`: the old bytes are overwritten where they lie,
    as far as the file system does that. Raises UsageError."""
    target = Path(os.path.realpath(path))
    try:
        old = _open_old(target) if wipe else None
        try:
            _write_beside(target, data)
            _wipe(old)
        finally:
            if old is not None:
                os.close(old)
        for part in target.parent.glob(f".{glob.escape(target.name)}-*{_PART}"):
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write the {what} {path}: {error.strerror}") from error


@contextlib.contextmanager
def locked(path: Path, what: str, within_s: float = PATIENCE_S) -> Iterator[None]:
    """Two processes that change the same file do so one after the other; its folder is made. Raises UsageError, also where the
    other one is not done within that time: it may be stopped."""
    folder = path.parent
    try:
        folder = Path(os.path.realpath(path)).parent  # of a loop of links, which opening it will refuse, itself
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"cannot use the folder {folder} for a {what}: {error.strerror}") from error
    try:
        if not _lock(descriptor, within_s):
            raise UsageError(
                f"another process has been changing the folder of the {what} {path} for more than {within_s:g} s: let it go on, "
                "or end it, and try again"
            )
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, within_s: float) -> bool:
    until_s = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_TRIES_EVERY_S)
        else:
            return True


def state_of(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file does; None while it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _write_beside(target: Path, data: bytes) -> None:
    descriptor, part = tempfile.mkstemp(prefix=f".{target.name}-", suffix=_PART, dir=target.parent)  # with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(part).replace(target)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    _flush_folder(target.parent)


def _open_old(target: Path) -> int | None:
    try:
        return os.open(target, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _wipe(descriptor: int | None) -> None:
    if descriptor is not None:
        os.pwrite(descriptor, bytes(os.fstat(descriptor).st_size), 0)
        os.fsync(descriptor)


def _flush_folder(folder: Path) -> None:
    """A power cut brings no old file back."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
