"""The break-even surface as a document, a page and tables, and its command."""

import io
import json
import re

import msgspec
import pytest
from rich.console import Console

from netgain.cli.main import run
from netgain.cost.break_even import Checked, DraftPrice, surface
from netgain.deciding.report.surface import DraftSurface, own_draft, write_surface
from netgain.deciding.report.surface_page import render_surface
from netgain.deciding.report.surface_text import show_surface
from netgain.documents import to_json
from tests.cost.test_break_even import curve

CHECKED = Checked(
    acceptance=0.5,
    k=4,
    batch=1,
    predicted_speedup=1.25,
    measured_speedup=1.17,
    lowest=1.11,
    highest=1.23,
    predicted_committed=1.94,
    measured_committed=1.92,
    predicted_verify=None,
    measured_verify=1.64,
    predicted_plain_s=0.005,
    measured_plain_s=0.0052,
    rounds=5,
    steps=300,
)


def document(**changes) -> DraftSurface:
    found = surface(curve(0.3, tokens=6), lengths=(1, 4, 8), batches=(1, 4, 8), price=DraftPrice(share=0.1))
    given = {
        "model": "<b>M</b>",
        "created": "2026-01-01T00:00:00+00:00",
        "netgain": "0",
        "subject": {"cpu": "C"},
        "measured_at": None,
        "surface": found,
        "price_basis": "as given",
        "draft": own_draft(found, "mine", (0.6, 0.4, 0.3, 0.2), "counted"),
        "checked": (CHECKED,),
        "context": {"kernels": None},
    }
    return DraftSurface(**given | changes)


def test_the_page_marks_break_even_and_shows_measured_beside_predicted():
    page = render_surface(document())
    assert "Synthetic acceptance, predicted from measured step costs" in page
    assert "&lt;b&gt;M" in page
    assert "<b>M" not in page
    assert page.count("pays from") > 3
    assert "never" in page  # four at once with this curve
    assert "1.25x" in page
    assert re.search(r'1\.17x<br><span class="soft">1\.11x to 1\.23x', page)
    assert "Predicted, not measured" in page
    assert not re.search(r"https?://", page)
    assert "unknown" in page


def test_the_tables_of_a_terminal_say_the_same():
    out = io.StringIO()
    show_surface(document(), Console(file=out, width=130))
    text = out.getvalue()
    assert "synthetic acceptance, predicted from measured step costs" in text
    assert re.search(r"50% +4 +1 +1\.25x +1\.17x \(1\.11 to 1\.23\)", text)
    assert "pays from" in text
    assert "never extrapolated" in text
    assert "8 at once, by acceptance" not in text, "a table of nothing"


def test_a_draft_lies_where_its_survival_and_price_put_it():
    found = document()
    column = found.surface.column(1, 4)
    assert found.draft.speedups[0][1] == pytest.approx((1 + 0.6 + 0.4 + 0.3 + 0.2) / column.needed)
    assert found.draft.speedups[0][2] is None, "survival of eight was not measured"


def test_a_surface_on_which_nothing_pays_has_no_picture():
    flat = surface(curve(3.0), lengths=(1,), batches=(1,))
    page = render_surface(document(surface=flat, draft=None, checked=()))
    assert "No length pays" in page
    assert "<svg" not in page


def test_the_document_is_read_back(tmp_path):
    report = write_surface(document(), tmp_path)
    assert report.name == "report.html"
    assert msgspec.json.decode((tmp_path / "draft-surface.json").read_bytes(), type=DraftSurface) == document()
    assert json.loads(to_json(document()))["schema"] == "netgain.draft-surface"


def test_the_command_reads_a_kept_curve_and_starts_no_engine(tmp_path, capsys):
    kept = tmp_path / "curve.json"
    kept.write_bytes(curve(0.2).to_json())
    asked = ["draft", "surface", "--curve", str(kept), "--k", "2,4", "--concurrency", "1,4", "--acceptance", "0.5,0.9"]
    assert (
        run([*asked, "--draft-cost", "0.05", "--draft-survival", "0.5,0.3", "--json", "--output", str(tmp_path / "r")])
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["label"] == "synthetic acceptance, predicted from measured step costs"
    assert said["surface"]["lengths"] == [2, 4]
    assert said["draft"]["speedups"][0][0] == pytest.approx(1.8 / (1.4 + 0.1))
    assert said["checked"] == []
    assert (tmp_path / "r/report.html").is_file()
    assert run(asked) == 0
    assert "pays from" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--k", "two"], "no list of numbers"),
        (["--acceptance", "1.2"], "acceptance of 1.2"),
        (["--check"], "leave --curve out"),
        (["--curve", "nowhere.json"], "nowhere.json cannot be read"),
        (["--draft-survival", "0.5"], "not known here"),
        (["--draft-cost", "-1"], "decode step"),
        (["--concurrency", "64"], "no step of these lengths was measured at 64"),
    ],
)
def test_bad_input_ends_with_one_line(tmp_path, capsys, more, why):
    kept = tmp_path / "curve.json"
    kept.write_bytes(curve().to_json())
    assert run(["draft", "surface", "--curve", str(kept), *more]) == 2
    errors = capsys.readouterr().err
    assert why in errors
    assert "Traceback" not in errors


def test_a_file_that_is_no_curve_is_refused(tmp_path, capsys):
    (tmp_path / "x.json").write_text("{}")
    assert run(["draft", "surface", "--curve", str(tmp_path / "x.json")]) == 2
    assert "not a step-cost curve" in capsys.readouterr().err
