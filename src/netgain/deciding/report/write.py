"""Writes a decision to a folder: report.html for people, decision.json for programs."""

from pathlib import Path

import msgspec

from netgain.deciding.report.html import render_html
from netgain.deciding.report.outcome import Outcome
from netgain.errors import UsageError

HTML = "report.html"
JSON = "decision.json"


def write_report(outcome: Outcome, folder: Path) -> Path:
    """Write both files and return the path of the HTML. Raises UsageError when the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / JSON).write_bytes(msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")
        (folder / HTML).write_text(render_html(outcome), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the report cannot be written to {folder}: {error}; choose another with --output") from error
    return folder / HTML
