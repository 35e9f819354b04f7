"""Writes a decision to a folder: report.html for people, verdict.json to hand on, decision.json with everything behind it."""

from pathlib import Path

import msgspec

from netgain.deciding.report.document import document_of
from netgain.deciding.report.html import render_html
from netgain.deciding.report.outcome import Outcome
from netgain.deciding.verdict.store import NAME, to_json
from netgain.errors import UsageError

HTML = "report.html"
JSON = "decision.json"


def write_report(outcome: Outcome, folder: Path) -> Path:
    """Write the files and return the path of the HTML; there is no verdict when nothing was tried. Raises UsageError when the
    folder cannot be written."""
    document = document_of(outcome)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / JSON).write_bytes(msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")
        if document is not None:
            (folder / NAME).write_bytes(to_json(document))
        (folder / HTML).write_text(render_html(outcome), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the report cannot be written to {folder}: {error}; choose another with --output") from error
    return folder / HTML
