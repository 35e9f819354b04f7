"""The JSON documents of the lab and the folders they lie in: written whole and so that two of them compare line by line, read
back with an error that says what is wrong and what to give instead."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from netgain.errors import UsageError
from netgain.heading import check_heading
from netgain.plain_file import read_plain, write_whole

T = TypeVar("T")


def to_json(document: Any) -> bytes:
    """Indented, with a line break at the end; infinite numbers become null."""
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


def write_folder(folder: Path, files: Mapping[str, bytes | str]) -> None:
    """Write them in their order, each whole or not at all. Raises UsageError when the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(folder / name, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UsageError(f"the report cannot be written to {folder}: {error}; choose another with --output") from error


def read_document(path: Path, name: str, kind: type[T], schema: str, version: int, hint: str | None = None) -> T:
    """The document in a file, or in a report's folder under `name`. Raises UsageError with what is wrong and where, and `hint`,
    what to give instead, when it is something else."""
    file = path / name if path.is_dir() else path
    try:
        text = read_plain(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}; give the {name} of a report") from error
    check_heading(text, file, schema, version, hint or f"give the {name} of a report's folder")
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{file} is no {schema.removeprefix('netgain.')} of version {version}: {error}") from error
