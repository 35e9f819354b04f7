"""The table of faults reported elsewhere tells the truth: every row cites its source, and every test it names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "docs/reported-faults.md").read_text().splitlines()
    if re.match(r"\| [\w.-]+/[\w.-]+#\d+", line)
]


def test_the_table_has_rows() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].partition(",")[0])
def test_every_row_is_held_by_tests_that_exist_or_says_why_it_does_not_apply(row: list[str]) -> None:
    sources, _, here, held = row
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source) for source in sources.split(", "))
    nodes = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", held)
    assert nodes or here.startswith("Does not apply")
    for path, name in nodes:
        assert re.search(rf"^(async )?def {name}\b", (ROOT / path).read_text(), flags=re.MULTILINE), f"{path}::{name}"
