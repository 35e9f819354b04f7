"""Writes a comparison to a folder: report.html for people, report.md for a pull request, verdict.json to hand on, comparison.json
with everything behind it."""

from pathlib import Path

import msgspec

from netgain.deciding.compare.document import document_of
from netgain.deciding.compare.outcome import Comparison
from netgain.deciding.compare.page import render_comparison
from netgain.deciding.report.markdown import NAME as MARKDOWN
from netgain.deciding.report.markdown import verdict_markdown
from netgain.deciding.verdict.store import NAME, to_json
from netgain.errors import UsageError
from netgain.plain_file import write_whole

HTML = "report.html"
JSON = "comparison.json"


def write_comparison(outcome: Comparison, folder: Path) -> Path:
    """Write the files and return the path of the HTML. Raises UsageError when the folder cannot be written."""
    document = document_of(outcome)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / NAME, to_json(document))  # the smallest and most needed first
        write_whole(folder / MARKDOWN, verdict_markdown(document, word=outcome.word).encode())
        write_whole(folder / HTML, render_comparison(outcome).encode())
        write_whole(folder / JSON, msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")
    except OSError as error:
        raise UsageError(f"the report cannot be written to {folder}: {error}; choose another with --output") from error
    return folder / HTML
