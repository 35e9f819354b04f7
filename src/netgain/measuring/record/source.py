"""A log file to be imported: its lines, and why some of them are no requests."""

import gzip
import io
import zlib
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
        """Lines without their ends, blank ones included; a packed file (gzip) is unpacked."""
        try:
            with self.path.open("rb") as file, _unpacked(file) as plain:
                for line in io.TextIOWrapper(plain, encoding="utf-8", errors="replace"):
                    yield line.rstrip("\r\n")
        except (EOFError, zlib.error) as error:
            raise UsageError(f"cannot read {self.path}: it is packed and damaged ({error}); unpack it first") from error
        except OSError as error:
            raise UsageError(f"cannot read {self.path}: {error.strerror or error}; check the path") from error

    @property
    def changed_s(self) -> float:
        """When the file was last written, for logs that leave out the year."""
        return self.path.stat().st_mtime


def _unpacked(file: io.BufferedReader) -> io.BufferedReader | gzip.GzipFile:
    return gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
