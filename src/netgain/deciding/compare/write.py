"""Writes a comparison to a folder: report.html for people, report.md for a pull request, verdict.json to hand on, comparison.json
with everything behind it."""

from pathlib import Path

from netgain.deciding.compare.document import document_of
from netgain.deciding.compare.outcome import Comparison
from netgain.deciding.compare.page import render_comparison
from netgain.deciding.report.markdown import NAME as MARKDOWN
from netgain.deciding.report.markdown import verdict_markdown
from netgain.deciding.verdict.store import NAME
from netgain.documents import to_json, write_folder

HTML = "report.html"
JSON = "comparison.json"


def write_comparison(outcome: Comparison, folder: Path) -> Path:
    """Write the files and return the path of the HTML. Raises UsageError when the folder cannot be written."""
    document = document_of(outcome)
    write_folder(
        folder,
        {
            NAME: to_json(document),  # the smallest and most needed first
            MARKDOWN: verdict_markdown(document, word=outcome.word),
            HTML: render_comparison(outcome),
            JSON: to_json(outcome),
        },
    )
    return folder / HTML
