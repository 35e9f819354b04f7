"""A log file to be imported: its lines, and why some of them are no requests."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from netgain.errors import UsageError


class Skipped(msgspec.Struct, frozen=True):
    """A line, span or row that made no request; `reason` is one of a few per format, so that they can be counted."""

    reason: str


class SourceFile:
    """Reads text with whatever bytes it holds. Raises UsageError when the file cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> Iterator[str]:
        """Lines without their ends, blank ones included."""
        try:
            with self.path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    yield line.rstrip("\r\n")
        except OSError as error:
            raise UsageError(f"cannot read {self.path}: {error.strerror}; check the path") from error

    @property
    def changed_s(self) -> float:
        """When the file was last written, for logs that leave out the year."""
        return self.path.stat().st_mtime
