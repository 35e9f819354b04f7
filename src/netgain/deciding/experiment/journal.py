"""The finished blocks of an experiment on disk as they come, so that a crash loses at most the block that was running."""

import fcntl
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.observation import Observation
from netgain.errors import Unavailable, UsageError
from netgain.heading import check_heading

SCHEMA, VERSION = "netgain.blocks", 1
FILE = "blocks.jsonl"


class Kept(msgspec.Struct, frozen=True, kw_only=True, tag="block", tag_field="entry"):
    """One finished block with its requests."""

    block: Block
    observations: tuple[Observation, ...]


class _Resumed(msgspec.Struct, frozen=True, kw_only=True, tag="resumed", tag_field="entry"):
    """A later run went on here: the servers are others than before, also within a start."""

    resumed_at: int


class Journal:
    """The first line says what is measured, each further one is a finished block. Held by one process at a time.

    `subject` is any tree of names and values: what must be the same for blocks to belong together.
    """

    def __init__(self, file: BinaryIO, path: Path, kept: Sequence[Kept], resumed_at: tuple[int, ...]) -> None:
        self._file = file
        self.path = path
        self.kept = tuple(kept)
        self.resumed_at = resumed_at

    @classmethod
    def create(cls, path: Path, subject: Mapping[str, Any]) -> "Journal":
        """Begin a new one. Raises UsageError when the file is there already or cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("xb")
        except FileExistsError:
            raise UsageError(f"{path} holds another experiment; resume it, or name another folder") from None
        except OSError as error:
            raise UsageError(f"cannot write {path} ({error.strerror or error}); name another folder") from error
        journal = cls(_locked(file, path), path, (), ())
        journal._append({"schema": SCHEMA, "version": VERSION, "subject": subject})
        return journal

    @classmethod
    def resume(cls, path: Path, subject: Mapping[str, Any]) -> "Journal":
        """Go on with one. A last line that was cut short is dropped. Raises UsageError when there is none, when it cannot be
        read, when another process writes it, or when it is about another subject: with the field that differs."""
        lines = _lines(path)
        before = read_subject(path, lines)
        if (field := first_difference(before, msgspec.to_builtins(subject))) is not None:
            name, then, now = field
            raise UsageError(
                f"{path} cannot be resumed: {name} was {_shown(then)} and is {_shown(now)} now. Ask for the same again, or "
                "begin a new experiment in another folder"
            )
        kept: list[Kept] = []
        resumed: list[int] = []
        for number, line in enumerate(lines[1:], start=2):
            try:
                found = msgspec.json.decode(line, type=Kept | _Resumed)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise UsageError(f"{path} cannot be resumed: line {number} cannot be read ({error})") from error
            if isinstance(found, _Resumed):
                resumed.append(found.resumed_at)
            elif found.block.index != len(kept):
                raise UsageError(
                    f"{path} cannot be resumed: line {number} is block {found.block.index}, not {len(kept)}"
                )
            else:
                kept.append(found)
        try:
            opened = path.open("r+b")
        except OSError as error:
            raise UsageError(f"{path} cannot be written on ({error.strerror or error})") from error
        file = _locked(opened, path)
        file.truncate(sum(len(line) + 1 for line in lines))
        file.seek(0, os.SEEK_END)
        journal = cls(file, path, kept, (*resumed, len(kept)))
        journal._append(_Resumed(resumed_at=len(kept)))
        return journal

    def add(self, block: Block, observations: Sequence[Observation]) -> None:
        """Returns once the block is on the disk."""
        self._append(Kept(block=block, observations=tuple(observations)))

    def close(self) -> None:
        """Let another process have it. May be called twice."""
        with suppress(OSError):  # of a line that could not be written, which was said then
            self._file.close()

    def _append(self, entry: object) -> None:
        try:
            self._file.write(msgspec.json.encode(entry) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise Unavailable(f"cannot write on {self.path} ({error.strerror or error}); make room") from error


def read_subject(path: Path, lines: Sequence[bytes] | None = None) -> dict[str, Any]:
    """What a journal is about. Raises UsageError."""
    lines = _lines(path) if lines is None else lines
    try:
        head = msgspec.json.decode(lines[0], type=dict[str, Any])
        check_heading(lines[0], path, SCHEMA, VERSION, "begin a new experiment in another folder")
        return dict(head["subject"])
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be resumed: it does not begin with what was measured") from error


def finished_blocks(path: Path) -> int:
    """How many a journal holds; 0 of one that cannot be read."""
    try:
        return sum(line.startswith(b'{"entry":"block"') for line in path.read_bytes().split(b"\n")[:-1])
    except OSError:
        return 0


def first_difference(before: object, now: object, name: str = "") -> tuple[str, object, object] | None:
    """(field, before, now) of the first place where two trees differ, fields in order of name."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            inner = first_difference(before.get(key), now.get(key), f"{name}.{key}" if name else str(key))
            if inner is not None:
                return inner
        return None
    if isinstance(before, list | tuple) and isinstance(now, list | tuple) and len(before) == len(now):
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            inner = first_difference(one, other, f"{name}[{place}]")
            if inner is not None:
                return inner
        return None
    return None if before == now else (name, before, now)


def _lines(path: Path) -> list[bytes]:
    """All complete lines, without their ends."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"there is nothing to resume: {path} cannot be read ({error.strerror or error})") from error
    return text.split(b"\n")[:-1]


def _locked(file: BinaryIO, path: Path) -> BinaryIO:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise UsageError(f"another process is writing {path}; wait for it or name another folder") from error
    return file


def _shown(value: object) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 120 else text[:117] + "..."
