"""Writes what several candidates were found to do: a folder with the usual files for each, and beside them the summary."""

from pathlib import Path

from netgain.deciding.report.candidates_page import render_candidates
from netgain.deciding.report.candidates_text import candidates_markdown
from netgain.deciding.report.markdown import NAME as MARKDOWN
from netgain.deciding.report.several import Several, candidates_document
from netgain.deciding.report.write import HTML, write_report
from netgain.documents import to_json, write_folder

JSON = "candidates.json"


def write_candidates(found: Several, folder: Path) -> Path:
    """Write the files and return the path of the summary's HTML, or, when nothing was tried, of the usual report that says so.
    Raises UsageError when a folder cannot be written."""
    document = candidates_document(found)
    if document is None:
        return write_report(found.base, folder)
    for one in found.outcomes:
        assert one.chosen is not None
        write_report(one, folder / one.chosen)
    write_folder(
        folder, {JSON: to_json(document), MARKDOWN: candidates_markdown(document), HTML: render_candidates(document)}
    )
    return folder / HTML
