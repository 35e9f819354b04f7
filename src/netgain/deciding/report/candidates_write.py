"""Writes what several candidates were found to do: a folder with the usual files for each, and beside them the summary."""

from pathlib import Path

import msgspec

from netgain.deciding.report.candidates_page import render_candidates
from netgain.deciding.report.candidates_text import candidates_markdown
from netgain.deciding.report.markdown import NAME as MARKDOWN
from netgain.deciding.report.several import CandidatesDocument, Several, candidates_document
from netgain.deciding.report.write import HTML, write_report
from netgain.errors import UsageError
from netgain.plain_file import write_whole

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
    try:
        write_whole(folder / JSON, to_json(document))
        write_whole(folder / MARKDOWN, candidates_markdown(document).encode())
        write_whole(folder / HTML, render_candidates(document).encode())
    except OSError as error:
        raise UsageError(f"the report cannot be written to {folder}: {error}; choose another with --output") from error
    return folder / HTML


def to_json(document: CandidatesDocument) -> bytes:
    """Indented, as the file has it; infinite numbers become null."""
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"
