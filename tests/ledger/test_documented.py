"""docs/ledger.md names every stage, metric and column that exists, and no others."""

import re
from pathlib import Path

from netgain.ledger.export import to_row
from netgain.ledger.prometheus import Exporter
from netgain.ledger.records import DraftCounts, RequestRecord
from netgain.ledger.stage import PRECEDENCE, Stage

TEXT = (Path(__file__).resolve().parents[2] / "docs/ledger.md").read_text()
CODE = set(re.findall(r"`([^`\n]+)`", TEXT))


def test_every_stage_is_explained_in_the_order_of_the_list() -> None:
    assert re.findall(r"^\| `(\w+)` \| ", TEXT.split("## Own cost")[0], re.MULTILINE) == [
        stage.value for stage in Stage
    ]


def test_precedence_is_told_as_it_is() -> None:
    told = TEXT.split("in this order:")[1].split(":")[0]
    assert re.findall(r"`(\w+)`", told) == [stage.value for stage in PRECEDENCE]


def test_every_metric_is_listed() -> None:
    exporter = Exporter()
    families = {
        f"{family.name}_total"
        if family.type == "counter"
        else f"{family.name}_info"
        if family.type == "info"
        else family.name
        for family in exporter.registry.collect()
        if not family.name.startswith("process_")
    }
    assert {name for name in CODE if name.startswith("netgain_")} == families


def test_every_column_is_listed() -> None:
    record = RequestRecord(
        request_id="r",
        choice=0,
        model="m",
        received_s=1.0,
        first_token_s=None,
        finished_s=2.0,
        finish_reason="error",
        prompt_tokens=0,
        cached_tokens=0,
        output_tokens=0,
        preemptions=0,
        stages={},
        ttft_stages=None,
        drafts=DraftCounts(),
    )
    section = TEXT.split("## Records")[1].split("## Metrics")[0]
    listed = {
        name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    columns = {re.sub(r"stage_\w+_s$", "stage_NAME_s", name) for name in to_row(record)}
    assert listed == columns
