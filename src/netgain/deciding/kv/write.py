"""Writes an experiment on KV tiers to a folder: report.html for people, kv-experiment.json with everything behind it."""

from pathlib import Path

import msgspec

from netgain.deciding.kv.outcome import SCHEMA, VERSION, KVExperiment
from netgain.deciding.kv.page import render_experiment
from netgain.errors import UsageError
from netgain.heading import check_heading
from netgain.plain_file import read_plain, write_whole

HTML = "report.html"
JSON = "kv-experiment.json"


def to_json(outcome: KVExperiment) -> bytes:
    """Indented; infinite numbers become null."""
    return msgspec.json.format(msgspec.json.encode(outcome)) + b"\n"


def write_experiment(outcome: KVExperiment, folder: Path) -> Path:
    """Write the files and return the path of the HTML. Raises UsageError when the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / JSON, to_json(outcome))
        write_whole(folder / HTML, render_experiment(outcome).encode())
    except OSError as error:
        raise UsageError(f"the report cannot be written to {folder}: {error}; choose another with --output") from error
    return folder / HTML


def read_experiment(path: Path) -> KVExperiment:
    """Read the document, or the one in a report's folder. Raises UsageError with what is wrong and where."""
    file = path / JSON if path.is_dir() else path
    try:
        text = read_plain(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}; give the {JSON} of a report") from error
    check_heading(text, file, SCHEMA, VERSION, f"give the {JSON} of a report's folder")
    try:
        return msgspec.json.decode(text, type=KVExperiment)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"{file} is no experiment of version {VERSION}: {error}") from error
