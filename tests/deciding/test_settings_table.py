"""Arm beside arm: what differs is first and marked, what is not told is said, and nothing is shown as equal that is not known."""

import msgspec
import pytest

from netgain.deciding.experiment.arms.settings_told import ArmSettings
from netgain.deciding.report.document import document_of
from netgain.deciding.report.html import render_html
from netgain.deciding.report.settings_table import NOT_TOLD, setting_rows, summary, versions
from netgain.deciding.report.write import write_report
from tests.deciding.test_report import adopted

__all__ = ["adopted"]  # a fixture

BEFORE = ArmSettings(
    name="baseline", engine="vllm", version="0.32.0", settings={"a": "1", "b": "2", "c": "x", "port": "1", "<i>": "<b>"}
)
AFTER = msgspec.structs.replace(BEFORE, name="candidate", settings={"a": "1", "b": "3", "port": "2", "<i>": "<b>"})
SILENT = ArmSettings(name="candidate", engine="unnamed")


def test_what_differs_is_first_and_what_differs_between_any_two_processes_is_not_taken_for_it():
    rows = setting_rows([BEFORE, AFTER])
    assert [(row.name, row.state, row.marked) for row in rows] == [
        ("b", "differs", True),
        ("c", "told by one only", True),
        ("port", "differs between any two processes", True),
        ("<i>", "same", False),
        ("a", "same", False),
    ]
    assert rows[1].values == ("x", None)
    assert summary([BEFORE, AFTER]) == (
        "5 settings told; 1 differs; 1 told by one only; 1 differs between any two processes"
    )


def test_an_arm_that_tells_nothing_is_said_not_to():
    rows = setting_rows([BEFORE, SILENT])
    assert {row.state for row in rows} == {"same"}
    assert {row.values[1] for row in rows} == {None}
    assert summary([BEFORE, SILENT]) == f"5 settings told; candidate: {NOT_TOLD}"
    assert versions([BEFORE, SILENT]) == ["vllm 0.32.0", f"unnamed, {NOT_TOLD}"]
    assert summary([SILENT]) == f"no setting told; candidate: {NOT_TOLD}"


@pytest.mark.parametrize(("after", "expected"), [(AFTER, "1 differs"), (SILENT, NOT_TOLD)])
def test_the_page_of_decide_has_them_closed_and_escaped(adopted, tmp_path, after, expected):
    outcome = msgspec.structs.replace(adopted, settings=(BEFORE, after))
    page = render_html(outcome)
    (section,) = [part for part in page.split("<details") if "Every setting that the servers tell" in part]
    assert section.startswith(' class="long"><summary>')
    assert expected in section
    assert "<b>" not in section
    assert "&lt;b&gt;" in section
    document = document_of(outcome)
    assert document.arms[0].settings == BEFORE.settings
    assert document.arms[1].settings == (after.settings or {})
    write_report(outcome, tmp_path)
    told = msgspec.json.decode((tmp_path / "decision.json").read_bytes())
    assert told["settings"][1]["settings"] == after.settings
