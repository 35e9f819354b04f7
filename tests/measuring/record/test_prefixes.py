"""Prompts of recordings and traces as keys of blocks."""

import time
from pathlib import Path

import pytest

from netgain.cost.reuse import reuse_curve
from netgain.errors import UsageError
from netgain.measuring.record.entry import Entry
from netgain.measuring.record.journal import Journal
from netgain.measuring.record.prefixes import read_prefixes


def recording(path: Path, *entries: Entry) -> Path:
    journal = Journal(path, "proxy", block_unit="bytes", block_size=256)
    for entry in entries:
        journal.write(entry)
    journal.close()
    return path


def test_a_recordings_prompts_come_in_order_of_arrival_with_the_tokens_of_a_block(tmp_path: Path) -> None:
    found = read_prefixes(
        recording(
            tmp_path / "r",
            Entry(id="b", arrived_unix_s=2.0, blocks=(1, 3), prompt_size=600, prompt_tokens=150),
            Entry(id="a", arrived_unix_s=1.0, blocks=(1, 2), prompt_size=600, prompt_tokens=150),
            Entry(id="c", arrived_unix_s=3.0),
        )
    )
    assert [[block for _, block in prompt] for prompt in found.prompts] == [[1, 2], [1, 3]]
    assert (found.unknown, found.block_size, found.block_unit) == (1, 256, "bytes")
    assert found.block_tokens == pytest.approx(64.0)


def test_ids_of_two_recordings_in_one_file_are_not_compared(tmp_path: Path) -> None:
    for _ in range(2):
        recording(tmp_path / "r", Entry(id="a", blocks=(1, 2)))
    found = read_prefixes(tmp_path / "r")
    assert reuse_curve(found.prompts).at(None).hit_rate == 0.0
    assert found.block_tokens is None, "no request told its tokens"


def test_a_trace_in_mooncakes_form_is_read_as_it_is(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    rows = ("[5, 6]", "[5, 7]", "[5, 6, 8]")
    lines = [
        f'{{"timestamp": {number}, "input_length": 900, "output_length": 5, "hash_ids": {ids}}}'
        for number, ids in enumerate(rows)
    ]
    trace.write_text("\n".join([*lines, "no row"]))
    found = read_prefixes(trace)
    assert found.prompts == ((5, 6), (5, 7), (5, 6, 8))
    assert (found.unreadable, found.block_tokens) == (1, 512.0)


def test_what_tells_nothing_of_blocks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing of its prompts' blocks"):
        read_prefixes(recording(tmp_path / "r", Entry(id="a")))
    with pytest.raises(UsageError, match="cannot read"):
        read_prefixes(tmp_path / "none")


@pytest.mark.shared_data
def test_the_conversation_trace_gives_its_ideal_hit_rate_within_seconds(shared_data: Path) -> None:
    started_s = time.process_time()
    curve = reuse_curve(read_prefixes(shared_data / "traces" / "mooncake_conversation.jsonl").prompts)
    assert curve.at(None).hit_rate == pytest.approx(0.366, abs=0.0005)
    assert curve.at(curve.distinct // 10).hit_rate == pytest.approx(0.279, abs=0.0005)
    assert time.process_time() - started_s < 10.0
