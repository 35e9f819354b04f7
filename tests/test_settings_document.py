"""docs/settings.md says what the configuration tree says."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_is_what_the_tree_says_now() -> None:
    tool = runpy.run_path(str(ROOT / "tools/document_settings.py"))
    assert (ROOT / "docs/settings.md").read_text(encoding="utf-8") == tool["page"](), (
        "run .venv/bin/python tools/document_settings.py"
    )


def test_every_setting_has_a_meaning() -> None:
    rows = [line for line in (ROOT / "docs/settings.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    assert [row for row in rows if row.endswith("|  |")] == []
