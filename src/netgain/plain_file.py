"""Files and folders that the user named, whatever they turn out to be."""

import errno
import fcntl
import itertools
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from netgain.errors import UsageError


def read_plain(path: Path) -> bytes:
    """As `Path.read_bytes`, of a file or a pipe. A device, which may have no end, is an OSError like all that cannot be read."""
    with path.open("rb") as file:
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
        return file.read()


def write_whole(path: Path, data: bytes) -> None:
    """Replace the file at once, or leave it as it was: never half of one. Raises OSError."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def as_text(name: str) -> str:
    """A name of a file for a document: file systems allow names that are no text, JSON does not."""
    return name.encode("utf-8", "replace").decode()


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make it and see that it can be written, before work of hours depends on it, and keep other runs of netgain out meanwhile.
    Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        held = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UsageError(
            f"cannot write {folder} ({error.strerror or error}); name another folder (--output)"
        ) from error
    try:
        _lock(held, folder)
        yield
    finally:
        os.close(held)


def unused(folder: Path) -> Path:
    """The folder, or one beside it with a number, so that nothing is there yet."""
    names = itertools.chain((folder,), (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2)))
    return next(name for name in names if not name.exists())


def _lock(folder: int, name: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"another run of netgain is writing to {name}; wait for it, or name another folder (--output)"
        ) from None
    except OSError:  # a file system that knows no locks
        return
