"""Verdicts on disk, read back."""

from pathlib import Path

from netgain.deciding.verdict.document import SCHEMA, VERSION, VerdictDocument
from netgain.documents import read_document
from netgain.errors import UsageError

NAME = "verdict.json"


def read_verdict(path: Path) -> VerdictDocument:
    """Read `verdict.json`, or the one in a report's folder. Raises UsageError with what is wrong and where."""
    if path.is_dir() and not (path / NAME).exists() and (several := sorted(path.glob(f"*/{NAME}"))):
        names = ", ".join(str(one.parent) for one in several)
        raise UsageError(f"{path} holds the verdicts of several candidates; give the folder of one: {names}")
    return read_document(path, NAME, VerdictDocument, SCHEMA, VERSION)
