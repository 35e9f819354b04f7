"""A recording on disk: append-only, rotated by size, and never a reason for serving to stop."""

import importlib.metadata
import logging
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from netgain.errors import UsageError
from netgain.heading import heading_of
from netgain.ledger.lines import LineWriter
from netgain.measuring.record.entry import SCHEMA, VERSION, Closing, Entry, Line, Recording, Source, Unit

_log = logging.getLogger(__name__)


class Journal:
    """Writes one recording. What cannot be written is counted in `lost`, said once, and tried again with the next entry.

    With `rotate_bytes`, a file that has grown beyond it is set aside as NAME.1, NAME.2, ... (higher is later) and a new one
    begun. A recording with text can be read by its owner only.
    """

    def __init__(
        self,
        path: Path,
        source: Source,
        *,
        block_unit: Unit | None = None,
        block_size: int | None = None,
        upstream: str | None = None,
        with_text: bool = False,
        rotate_bytes: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        """Raises UsageError when the file cannot be written."""
        self.written = self.lost = 0
        self._path = path
        self._rotate_bytes = rotate_bytes
        self._encoder = msgspec.json.Encoder()
        self._head = Recording(
            schema=SCHEMA,
            version=VERSION,
            recording=secrets.token_hex(8),
            source=source,
            created_unix_s=time.time(),
            netgain=importlib.metadata.version("netgain"),
            block_unit=block_unit,
            block_size=block_size,
            upstream=upstream,
            with_text=with_text,
            notes=notes,
        )
        if with_text and path.exists():
            path.chmod(0o600)  # a file that others could read must not get texts
        self._lines = self._open()
        if not self._lines.claim():
            self._lines.close()
            raise UsageError(f"another recorder is writing to {path}; name another file")
        try:
            self._lines.write(self._encoder.encode(self._head))
        except OSError as error:
            self._lines.close()
            raise UsageError(f"cannot write the recording {path}: {error.strerror or error}; name another") from error

    def write(self, entry: Entry) -> None:
        """Append one request; never raises for a disk that does not take it."""
        try:
            self._lines.write(self._encoder.encode(entry))
            self.written += 1
        except OSError as error:
            self.lose(str(error.strerror or error))
            return
        if self._rotate_bytes is not None and self._lines.size_bytes >= self._rotate_bytes:
            self._rotate()

    def lose(self, reason: str, count: int = 1) -> None:
        """Count requests that were served but are not in the recording."""
        if self.lost == 0:
            _log.error(
                "record: the recording %s is not complete, %s; further losses are only counted", self._path, reason
            )
        self.lost += count

    def close(self) -> None:
        """End the recording with its counts."""
        try:
            closing = Closing(recording=self._head.recording, written=self.written, lost=self.lost)
            self._lines.write(self._encoder.encode(closing))
        except OSError as error:
            _log.error("record: the recording %s has no closing line: %s", self._path, error.strerror or error)
        self._lines.close()

    def _open(self) -> LineWriter:
        return LineWriter(self._path, "requests", 0o600 if self._head.with_text else 0o644)

    def _rotate(self) -> None:
        """Where that is not possible, the old file grows on."""
        number = max((part for part, _ in _set_aside(self._path)), default=0) + 1
        head = msgspec.structs.replace(self._head, part=self._head.part + 1)
        try:
            self._path.rename(self._path.with_name(f"{self._path.name}.{number}"))
            following = self._open()
            following.claim()
            following.write(self._encoder.encode(head))
        except (OSError, UsageError) as error:
            self._rotate_bytes = None
            _log.error("record: %s cannot be set aside (%s) and grows on", self._path, error)
            return
        self._lines.close()
        self._lines, self._head = following, head


class Unreadable(msgspec.Struct, frozen=True):
    """A line that is none of a recording's."""

    number: int


def read_recording(path: Path) -> Iterator[Line | Unreadable]:
    """The lines of a recording in order of time, parts that were set aside first.

    Raises UsageError when a file cannot be read, is no recording, or is of a newer version.
    """
    parts = [part for _, part in sorted(_set_aside(path))]
    decoder = msgspec.json.Decoder(Line)
    first = True
    for part in (*parts, path):
        try:
            if part.exists() and not (part.is_file() or part.is_dir()):
                raise UsageError(f"{part} is no plain file, so it is no recording")
            with part.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if not line.strip():
                        continue
                    try:
                        found: Line | Unreadable = decoder.decode(line)
                    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                        found = Unreadable(number)
                    if not isinstance(found, Entry) and (version := _version(line)) is not None and version > VERSION:
                        raise UsageError(
                            f"{part} is a recording of version {version}, this netgain reads up to {VERSION}: "
                            "read it with the netgain that wrote it"
                        )
                    if first and not isinstance(found, Recording):
                        raise UsageError(f"{part} is no recording of netgain record: its first line does not say so")
                    first = False
                    yield found
        except OSError as error:
            raise UsageError(f"cannot read the recording {part}: {error.strerror}") from error
    if first:
        raise UsageError(f"{path} is empty, so it is no recording")


def is_recording(data: bytes) -> bool:
    """Whether a file that begins with `data` is one, of whatever version."""
    return _version(data.split(b"\n", 1)[0]) is not None


def _version(line: bytes) -> int | None:
    """Of a recording's first line, which later versions may have changed in all else."""
    found = heading_of(line)
    return found.version if found.schema == SCHEMA and type(found.version) is int else None


def _set_aside(path: Path) -> list[tuple[int, Path]]:
    pattern = re.compile(re.escape(path.name) + r"\.(\d+)")
    try:
        found = [(pattern.fullmatch(other.name), other) for other in path.parent.iterdir()]
    except OSError:
        return []
    return [(int(match[1]), other) for match, other in found if match]
