"""Verdicts on disk: written so that two of them compare line by line, read back with an error that says what is wrong."""

from pathlib import Path

import msgspec

from netgain.deciding.verdict.document import SCHEMA, VERSION, VerdictDocument
from netgain.errors import UsageError

NAME = "verdict.json"


class _Heading(msgspec.Struct):
    schema: str | None = None
    version: int | None = None


def to_json(document: VerdictDocument) -> bytes:
    """Indented JSON; infinite numbers become null."""
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


def read_verdict(path: Path) -> VerdictDocument:
    """Read `verdict.json`, or the one in a report's folder. Raises UsageError with what is wrong and where."""
    file = path / NAME if path.is_dir() else path
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}; give the {NAME} of a report") from error
    try:
        heading = msgspec.json.decode(text, type=_Heading)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{file} is no verdict: {error}") from error
    if heading.schema != SCHEMA:
        raise UsageError(f"{file} is no verdict: it has no schema {SCHEMA!r}; give the {NAME} of a report's folder")
    if heading.version != VERSION:
        raise UsageError(
            f"{file} is a verdict of version {heading.version}; this netgain reads version {VERSION}: "
            "decide again, or use the netgain that wrote it"
        )
    try:
        return msgspec.json.decode(text, type=VerdictDocument)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file} is no verdict of version {VERSION}: {error}") from error
