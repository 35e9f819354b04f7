"""Writes a decision to a folder: report.html for people, report.md for a pull request, verdict.json to hand on, decision.json
with everything behind it."""

from pathlib import Path

from netgain.deciding.report.document import document_of
from netgain.deciding.report.html import render_html
from netgain.deciding.report.markdown import NAME as MARKDOWN
from netgain.deciding.report.markdown import nothing_tried_markdown, verdict_markdown
from netgain.deciding.report.outcome import Outcome
from netgain.deciding.verdict.store import NAME
from netgain.documents import to_json, write_folder

HTML = "report.html"
JSON = "decision.json"


def write_report(outcome: Outcome, folder: Path) -> Path:
    """Write the files and return the path of the HTML; there is no verdict when nothing was tried. Raises UsageError when the
    folder cannot be written."""
    document = document_of(outcome)
    told = nothing_tried_markdown(outcome) if document is None else verdict_markdown(document, outcome.scores)
    smallest_and_most_needed = {} if document is None else {NAME: to_json(document)}
    write_folder(
        folder, smallest_and_most_needed | {MARKDOWN: told, HTML: render_html(outcome), JSON: to_json(outcome)}
    )
    return folder / HTML
