"""Writes a decision to a folder: report.html for people, report.md for a pull request, verdict.json to hand on, decision.json
with everything behind it."""

from pathlib import Path

import msgspec

from netgain.deciding.report.document import document_of
from netgain.deciding.report.html import render_html
from netgain.deciding.report.markdown import NAME as MARKDOWN
from netgain.deciding.report.markdown import nothing_tried_markdown, verdict_markdown
from netgain.deciding.report.outcome import Outcome
from netgain.deciding.verdict.store import NAME, to_json
from netgain.errors import UsageError
from netgain.plain_file import write_whole

HTML = "report.html"
JSON = "decision.json"


def write_report(outcome: Outcome, folder: Path) -> Path:
    """Write the files and return the path of the HTML; there is no verdict when nothing was tried. Raises UsageError when the
    folder cannot be written."""
    document = document_of(outcome)
    told = nothing_tried_markdown(outcome) if document is None else verdict_markdown(document, outcome.scores)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if document is not None:
            write_whole(folder / NAME, to_json(document))  # the smallest and most needed first
        write_whole(folder / MARKDOWN, told.encode())
        write_whole(folder / HTML, render_html(outcome).encode())
        write_whole(folder / JSON, msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")
    except OSError as error:
        raise UsageError(f"the report cannot be written to {folder}: {error}; choose another with --output") from error
    return folder / HTML
