"""Rows, JSON lines and Parquet give back the record that went in, and a torn file costs one line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netgain.errors import UsageError
from netgain.ledger.export import JsonlContent, JsonlWriter, from_row, read_jsonl, to_row
from netgain.ledger.parquet import read_parquet, schema, write_parquet
from netgain.ledger.records import BlendCounts, DraftCounts, RequestRecord
from netgain.ledger.stage import Stage

SECONDS = st.floats(min_value=0.0, max_value=1e7, exclude_min=True)
STAGES = st.dictionaries(st.sampled_from(Stage), SECONDS, min_size=1)
COUNTS = st.lists(st.integers(0, 1000), max_size=5)
IDS = st.none() | st.lists(st.integers(0, 200_000), max_size=5).map(tuple)

BLENDING = st.builds(
    BlendCounts,
    selection=st.sampled_from(["naive", "first 16", "deviating 10%"]),
    lossy=st.booleans(),
    chunks=st.integers(1, 9),
    chunk_tokens=st.integers(1, 10**6),
    recomputed_tokens=st.floats(0, 1e6),
    computed_alone_tokens=st.integers(0, 10**6),
    alone_s=st.floats(0, 1e6),
    fetch=st.none() | st.sampled_from(["load", "compute", "no_answer"]),
    chunks_wanted=st.integers(0, 9),
    chunks_fetched=st.integers(0, 9),
    fetch_s=st.floats(0, 1e6),
    fetch_warm_s=st.none() | st.floats(0, 1e6),
    fetch_full_s=st.none() | st.floats(0, 1e6),
)


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    first = draw(st.none() | SECONDS)
    return RequestRecord(
        request_id=draw(st.text()),
        choice=draw(st.integers(0, 9)),
        model=draw(st.text(max_size=9)),
        received_s=draw(SECONDS),
        first_token_s=first,
        finished_s=draw(SECONDS),
        finish_reason=draw(st.sampled_from(["stop", "length", "abort", "error"])),
        prompt_tokens=draw(st.integers(0, 10**6)),
        cached_tokens=draw(st.integers(0, 10**6)),
        output_tokens=draw(st.integers(0, 10**6)),
        preemptions=draw(st.integers(0, 10)),
        stages=draw(STAGES),
        ttft_stages=None if first is None else draw(STAGES),
        drafts=DraftCounts(
            steps=draw(st.integers(0, 99)),
            drafted=draw(COUNTS),
            accepted=draw(COUNTS),
            by_length=draw(st.dictionaries(st.integers(0, 20), COUNTS, max_size=4)),
            refused=draw(st.integers(0, 3)),
        ),
        own_s=draw(st.none() | SECONDS),
        stall_s=draw(st.none() | SECONDS),
        prompt_ids=draw(IDS),
        output_ids=draw(IDS),
        error=draw(st.none() | st.text()),
        blending=draw(st.none() | BLENDING),
    )


FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

RECORD = RequestRecord(
    request_id="r",
    choice=0,
    model="m",
    received_s=1.0,
    first_token_s=1.5,
    finished_s=2.0,
    finish_reason="stop",
    prompt_tokens=10,
    cached_tokens=4,
    output_tokens=3,
    preemptions=0,
    stages={Stage.PREFILL: 0.5, Stage.DECODE: 0.5},
    ttft_stages={Stage.PREFILL: 0.5},
    drafts=DraftCounts(),
)


@FEW
@given(st.lists(records(), max_size=6))
def test_parquet_gives_back_the_records(
    tmp_path_factory: pytest.TempPathFactory, given_records: list[RequestRecord]
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "records.parquet"
    write_parquet(given_records, path)
    assert read_parquet(path) == tuple(given_records)


@FEW
@given(st.lists(records(), max_size=6))
def test_json_lines_give_back_the_records(
    tmp_path_factory: pytest.TempPathFactory, given_records: list[RequestRecord]
) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "records.jsonl"
    writer = JsonlWriter(path)
    for record in given_records:
        writer.write(record)
    writer.close()
    assert read_jsonl(path) == JsonlContent(tuple(given_records), 0)


@FEW
@given(records(), st.data())
def test_a_torn_last_line_is_skipped_and_counted(
    tmp_path_factory: pytest.TempPathFactory, record: RequestRecord, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("torn") / "records.jsonl"
    writer = JsonlWriter(path)
    writer.write(RECORD)
    whole = path.stat().st_size
    writer.write(record)
    writer.close()
    cut = data.draw(st.integers(whole + 1, path.stat().st_size - 2))
    os.truncate(path, cut)
    assert read_jsonl(path) == JsonlContent((RECORD,), 1)

    later = JsonlWriter(path)  # the process comes back and writes on
    later.write(record)
    later.close()
    assert read_jsonl(path) == JsonlContent((RECORD, record), 1)


def test_a_killed_writer_loses_at_most_its_last_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    source = (
        "import sys, msgspec, pathlib\n"
        "from netgain.ledger.export import JsonlWriter\n"
        "from netgain.ledger.records import RequestRecord\n"
        "record = msgspec.json.decode(sys.argv[2], type=RequestRecord)\n"
        "writer = JsonlWriter(pathlib.Path(sys.argv[1]))\n"
        "for index in range(10**9):\n"
        "    writer.write(msgspec.structs.replace(record, request_id=str(index)))\n"
        "    index == 50 and print('on', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source, str(path), msgspec.json.encode(RECORD).decode()], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"on\n"
        child.send_signal(signal.SIGKILL)
    content = read_jsonl(path)
    assert content.skipped <= 1
    assert [record.request_id for record in content.records] == [str(index) for index in range(len(content.records))]
    assert len(content.records) > 50


def test_rows_and_parquet_have_the_same_columns() -> None:
    assert list(to_row(RECORD)) == schema().names


def test_stages_are_columns_in_seconds() -> None:
    row = to_row(msgspec.structs.replace(RECORD, first_token_s=None, ttft_stages=None))
    assert (row["stage_prefill_s"], row["stage_queued_s"]) == (0.5, 0.0)
    assert row["ttft_stage_prefill_s"] is None
    assert all(not isinstance(value, dict) for name, value in row.items() if name != "draft_by_length")


def test_a_newer_schema_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(msgspec.json.encode({**to_row(RECORD), "schema": 99}) + b"\n")
    with pytest.raises(UsageError, match="schema 99"):
        read_jsonl(path)


def test_columns_of_a_later_release_are_ignored() -> None:
    assert from_row({**to_row(RECORD), "colour": "green"}) == RECORD


def test_lines_that_are_no_records_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    writer = JsonlWriter(path)
    writer.write(RECORD)
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"request_id": "only this"}\n[1, 2]\n\xff\xfe\n\n')
    writer = JsonlWriter(path)
    writer.write(RECORD)
    writer.close()
    writer.close()
    assert read_jsonl(path) == JsonlContent((RECORD, RECORD), 3)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    for attempt in (
        lambda path: JsonlWriter(path / "records.jsonl"),
        read_jsonl,
        read_parquet,
        lambda path: write_parquet([RECORD], path / "records.parquet"),
    ):
        with pytest.raises(UsageError, match="absent"):
            attempt(tmp_path / "absent")
    (tmp_path / "text.parquet").write_text("no table")
    with pytest.raises(UsageError, match=r"text\.parquet"):
        read_parquet(tmp_path / "text.parquet")
    write_parquet([RECORD], tmp_path / "good.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.parquet", "text.parquet"]
