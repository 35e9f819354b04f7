"""What was measured once and kept in the user's cache: one JSON file per subject, replaced whole, and ignored when damaged."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")
MOST_FILES = 200  # in one folder; the oldest go first


def file_of(folder: Path, subject: Mapping[str, object]) -> Path:
    """Where the measurement of `subject` (which machine, which model, ...) lies in `folder`."""
    return folder / f"{hashlib.sha256(msgspec.json.encode(subject, order='sorted')).hexdigest()[:32]}.json"


def read(path: Path, kind: type[T]) -> T | None:
    """What the file holds; None when there is none, or when it cannot be read or is not of this kind and format."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError):  # msgspec's errors are ValueErrors, too
        return None


def write(path: Path, value: msgspec.Struct) -> None:
    """Replace the file in one move, so that a reader sees the old or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    try:
        fresh.write_bytes(msgspec.json.encode(value))
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    _drop_oldest(path.parent)


def _drop_oldest(folder: Path) -> None:
    files = list(folder.glob("*.json"))
    if len(files) > MOST_FILES:
        with suppress(OSError):  # another process tidies up, too
            for file in sorted(files, key=lambda file: file.stat().st_mtime)[:-MOST_FILES]:
                file.unlink(missing_ok=True)
