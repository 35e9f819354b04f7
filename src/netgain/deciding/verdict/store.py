"""Verdicts on disk: written so that two of them compare line by line, read back with an error that says what is wrong."""

from pathlib import Path

import msgspec

from netgain.deciding.verdict.document import SCHEMA, VERSION, VerdictDocument
from netgain.errors import UsageError
from netgain.heading import check_heading
from netgain.plain_file import read_plain

NAME = "verdict.json"


def to_json(document: VerdictDocument) -> bytes:
    """Indented JSON; infinite numbers become null."""
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"


def read_verdict(path: Path) -> VerdictDocument:
    """Read `verdict.json`, or the one in a report's folder. Raises UsageError with what is wrong and where."""
    file = path / NAME if path.is_dir() else path
    if path.is_dir() and not file.exists() and (several := sorted(path.glob(f"*/{NAME}"))):
        names = ", ".join(str(one.parent) for one in several)
        raise UsageError(f"{path} holds the verdicts of several candidates; give the folder of one: {names}")
    try:
        text = read_plain(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}; give the {NAME} of a report") from error
    check_heading(text, file, SCHEMA, VERSION, f"give the {NAME} of a report's folder")
    try:
        return msgspec.json.decode(text, type=VerdictDocument)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{file} is no verdict of version {VERSION}: {error}") from error
