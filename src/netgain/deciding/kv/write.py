"""Writes an experiment on KV tiers to a folder: report.html for people, kv-experiment.json with everything behind it."""

from pathlib import Path

from netgain.deciding.kv.outcome import SCHEMA, VERSION, KVExperiment
from netgain.deciding.kv.page import render_experiment
from netgain.documents import read_document, to_json, write_folder

HTML = "report.html"
JSON = "kv-experiment.json"


def write_experiment(outcome: KVExperiment, folder: Path) -> Path:
    """Write the files and return the path of the HTML. Raises UsageError when the folder cannot be written."""
    write_folder(folder, {JSON: to_json(outcome), HTML: render_experiment(outcome)})
    return folder / HTML


def read_experiment(path: Path) -> KVExperiment:
    """Read the document, or the one in a report's folder. Raises UsageError with what is wrong and where."""
    return read_document(path, JSON, KVExperiment, SCHEMA, VERSION)
