"""Writes a comparison to a folder: comparison.json for programs."""

from pathlib import Path

import msgspec

from netgain.deciding.compare.outcome import Comparison
from netgain.errors import UsageError

JSON = "comparison.json"


def write_comparison(outcome: Comparison, folder: Path) -> Path:
    """Write the document and return its path. Raises UsageError when the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / JSON).write_bytes(msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")
    except OSError as error:
        raise UsageError(f"the report cannot be written to {folder}: {error}; choose another with --output") from error
    return folder / JSON
