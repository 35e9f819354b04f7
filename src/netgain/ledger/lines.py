"""Lines appended to a file so that neither a crash nor a full disk damages more than the line that was being written."""

import fcntl
import os
import stat
from pathlib import Path

from netgain.errors import UsageError


class LineWriter:
    """Appends with one write call per line, so that a killed process loses at most the line it was writing. For one writing
    process; a later one starts on a fresh line even after a crash."""

    def __init__(self, path: Path, holds: str, mode: int = 0o644) -> None:
        """`holds` says in messages what the lines are. Raises UsageError when the file cannot be opened for appending."""
        self._holds = holds
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode)
        except OSError as error:
            raise UsageError(f"cannot append {holds} to {path}: {error.strerror}. Name another file") from error
        self._torn = _ends_inside_a_line(self._file)

    def write(self, line: bytes) -> int:
        """Append `line` and its end; returns the bytes written. Raises OSError (a full disk); the next write then starts on
        a fresh line."""
        data = b"\n" + line + b"\n" if self._torn else line + b"\n"
        self._torn = True
        if os.write(self._file, data) != len(data):
            raise OSError(f"only a part of a line of {self._holds} could be written")
        self._torn = False
        return len(data)

    def claim(self) -> bool:
        """Whether no other process has claimed the file; what is no plain file can be written by many."""
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a file system without locks
        return True

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._file).st_size

    def close(self) -> None:
        """May be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _ends_inside_a_line(file: int) -> bool:
    """Whether a regular file has a last line without its end."""
    try:
        size = os.lseek(file, 0, os.SEEK_END)
        return size > 0 and os.pread(file, 1, size - 1) != b"\n"
    except OSError:
        return False  # a pipe or a device has no end to look at
