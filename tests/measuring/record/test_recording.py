"""What is written can be read, shows what is shared and nothing else, and survives disks and crashes."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.errors import UsageError
from netgain.measuring.record.entry import Asked, Closing, Entry, Recording
from netgain.measuring.record.hashing import BLOCK_BYTES, Hasher, canonical, prompt_count
from netgain.measuring.record.journal import Journal, Unreadable, read_recording
from netgain.measuring.record.repetition import copied_share
from netgain.measuring.record.show import show
from netgain.measuring.record.summary import reuse, summarise
from netgain.measuring.record.usage import UsageFilter, with_usage
from tests.measuring.scripted_server import DONE, chunk, event, final_usage


def _entry(number: int = 0, **fields: Any) -> Entry:
    return Entry(**{"id": str(number), "arrived_unix_s": 100.0 + number, "ended_after_s": 0.5, **fields})


@contextmanager
def _files_no_larger_than(size: int) -> Iterator[None]:
    """As on a full disk: beyond it, writes fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_loses_entries_and_says_how_many(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(tmp_path / "r", "proxy")
    journal.write(_entry(0))
    with _files_no_larger_than((tmp_path / "r").stat().st_size + 20):
        for number in range(1, 6):
            journal.write(_entry(number))
    journal.write(_entry(6))
    journal.close()
    lines = list(read_recording(tmp_path / "r"))
    assert [line.id for line in lines if isinstance(line, Entry)] == ["0", "6"]
    assert lines[-1] == Closing(recording=lines[-1].recording, written=2, lost=5)
    assert sum(isinstance(line, Unreadable) for line in lines) == 1, "the line that was cut"
    assert len([record for record in caplog.records if "not complete" in record.message]) == 1
    assert summarise(read_recording(tmp_path / "r")).lost == 5


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "r", tmp_path, Path("/dev/full")):
        with pytest.raises(UsageError):
            Journal(path, "proxy")


def test_rotated_parts_are_one_recording(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "r", "proxy", rotate_bytes=600)
    for number in range(40):
        journal.write(_entry(number, blocks=(1, 2)))
    journal.close()
    assert len(list(tmp_path.iterdir())) > 5
    assert all(path.stat().st_size < 900 for path in tmp_path.iterdir())
    lines = list(read_recording(tmp_path / "r"))
    assert [line.id for line in lines if isinstance(line, Entry)] == [str(number) for number in range(40)]
    assert len({line.recording for line in lines if isinstance(line, Recording)}) == 1
    assert summarise(lines).reuse[-1].hit_rate == pytest.approx(39 / 40)


def test_a_recording_appended_after_a_crash_stays_readable(tmp_path: Path) -> None:
    first = Journal(tmp_path / "r", "proxy")
    first.write(_entry(0, blocks=(7,)))
    first.close()
    with (tmp_path / "r").open("ab") as file:
        file.write(b'{"kind":"request","id":"to')
    second = Journal(tmp_path / "r", "proxy")
    second.write(_entry(1, blocks=(7,)))
    second.close()
    lines = list(read_recording(tmp_path / "r"))
    assert [line.id for line in lines if isinstance(line, Entry)] == ["0", "1"]
    assert summarise(lines).reuse[-1].hit_rate == 0.0, "ids of two recordings are not compared"


@pytest.mark.parametrize("content", [b"", b"{}\n", b"text\n", b'{"kind":"request","id":"1"}\n', b"\xff\xfe\x00"])
def test_what_is_no_recording_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(UsageError, match="no recording"):
        list(read_recording(tmp_path / "r"))


def test_a_recording_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "r", "proxy").close()
    (tmp_path / "r").write_bytes((tmp_path / "r").read_bytes().replace(b'"version":1', b'"version":9'))
    with pytest.raises(UsageError, match="version 9"):
        list(read_recording(tmp_path / "r"))


@given(st.binary(max_size=2000), st.binary(max_size=700), st.binary(max_size=700))
def test_blocks_are_shared_exactly_as_far_as_the_prompts_are(common: bytes, one: bytes, other: bytes) -> None:
    hasher = Hasher()
    a, b = common + b"1" + one, common + b"2" + other
    ours, theirs = hasher.blocks(a), hasher.blocks(b)
    shared = sum(x == y for x, y in zip(ours, theirs, strict=False))
    assert shared == len(common) // BLOCK_BYTES
    assert ours[:shared] == theirs[:shared]
    assert len(ours) == len(a) // BLOCK_BYTES
    assert all(0 <= block < 2**64 for block in ours)


def test_ids_differ_between_recordings_so_texts_cannot_be_guessed_across_them() -> None:
    text = b"x" * 4096
    assert not set(Hasher().blocks(text)) & set(Hasher().blocks(text))
    assert Hasher().name("tenant", "key") != Hasher().name("tenant", "key")


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    turns = [{"role": "user", "content": "hi " * 200}, {"content": "yes", "role": "assistant"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    short = canonical({"messages": turns[:1], "tools": tools})
    long = canonical({"messages": turns, "tools": tools, "temperature": 1})
    assert short is not None
    assert long is not None
    assert long.startswith(short)
    assert canonical({"messages": turns}) != long, "tools are part of the prompt"


@pytest.mark.parametrize(
    ("body", "count", "hashed"),
    [
        ({"prompt": "a"}, 1, True),
        ({"prompt": ["a"]}, 1, True),
        ({"prompt": ["a", "b"]}, 2, False),
        ({"prompt": [1, 2, -3]}, 1, True),
        ({"prompt": [[1, 2], [3]]}, 2, False),
        ({"prompt": []}, None, False),
        ({"prompt": 5}, None, False),
        ({"messages": "x"}, 1, False),
        ({}, None, False),
    ],
)
def test_prompts_of_every_shape_are_counted(body: dict[str, Any], count: int | None, hashed: bool) -> None:
    assert prompt_count(body) == count
    assert (canonical(body) is not None) == hashed


def test_the_hit_rate_curve_of_an_lru_cache() -> None:
    requests = [[("r", n) for n in (1, 2, 3)], [("r", n) for n in (1, 2, 4)], [("r", n) for n in (5, 2, 3)]]
    (only,) = reuse(requests)
    assert (only.blocks, only.hit_rate) == (None, pytest.approx(2 / 9)), "hits end at the first miss"
    rounds = [[("r", 1000 * n + k) for k in range(10)] for n in range(10)] * 2
    small, unlimited = reuse(rounds)
    assert (small.blocks, small.hit_rate, unlimited.hit_rate) == (64, 0.0, 0.5)


def test_a_summary_tells_unknown_from_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "r", "proxy")
    journal.write(Entry(id="a"))
    journal.write(Entry(id="b", error="it broke"))
    journal.close()
    found = summarise(read_recording(tmp_path / "r"))
    assert (found.requests, found.failed) == (2, 1)
    assert (found.rate_per_s, found.mean_in_flight, found.prompt_tokens, found.reuse) == (None, None, None, ())


def test_streams_without_counts_are_told_with_what_asks_for_them(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "r", "proxy")
    for entry in (
        _entry(0, asked=Asked(stream=True)),
        _entry(1, asked=Asked(stream=True), output_tokens=5),
        _entry(2, asked=Asked(stream=True), error="it broke"),
        _entry(3),
    ):
        journal.write(entry)
    journal.close()
    found = summarise(read_recording(tmp_path / "r"))
    assert found.uncounted_streams == 1
    assert "1 stream gave no counts: netgain record --ask-usage asks for them" in "\n".join(show(found))
    assert "--ask-usage" not in "\n".join(show(found, asked_usage=True))


def test_concurrency_is_the_area_and_the_peak() -> None:
    entries = [_entry(0, ended_after_s=2.0), _entry(1, ended_after_s=2.0), _entry(4, ended_after_s=1.0)]
    found = summarise(entries)
    assert found.window_s == pytest.approx(5.0)
    assert found.mean_in_flight == pytest.approx(1.0)
    assert found.most_in_flight == 2


def test_copied_words_are_told_from_new_ones() -> None:
    text = "the quick brown fox jumps over the lazy dog and runs far away from it"
    assert copied_share(text, text) == pytest.approx(1.0, abs=0.2)
    assert copied_share(text, "nothing here has ever been said before by anyone at all today") == 0.0
    assert copied_share(text, "too short") is None


@pytest.mark.parametrize("size", [1, 3, 7, 50, 10_000])
def test_only_the_usage_chunk_is_taken_out_however_the_stream_is_cut(size: int) -> None:
    kept = chunk("a") + b": comment\n\n" + event({"choices": [], "usage": None}) + chunk("usage", finish="stop")
    stream = kept + final_usage(5) + DONE + b"data: half"
    passed = UsageFilter()
    got = b"".join(passed.feed(stream[at : at + size]) for at in range(0, len(stream), size)) + passed.close()
    assert got == kept + DONE + b"data: half"


def test_usage_is_only_asked_of_streams_that_do_not_ask() -> None:
    path = "/v1/chat/completions?x=1"
    assert with_usage(path, b'{"stream":true,"stream_options":{"a":1}}') is not None
    for body in (b'{"stream":true,"stream_options":{"include_usage":true}}', b'{"stream":false}', b"{", b"[]"):
        assert with_usage(path, body) is None
    assert with_usage("/v1/embeddings", b'{"stream":true}') is None


def test_two_recorders_do_not_mix_in_one_file(tmp_path: Path) -> None:
    first = Journal(tmp_path / "r", "proxy")
    with pytest.raises(UsageError, match="another recorder"):
        Journal(tmp_path / "r", "proxy")
    first.close()
    Journal(tmp_path / "r", "proxy").close()
    assert sum(isinstance(line, Recording) for line in read_recording(tmp_path / "r")) == 2


def test_a_newer_version_is_told_whatever_else_it_changed(tmp_path: Path) -> None:
    (tmp_path / "r").write_text(
        '{"kind":"recording","schema":"netgain.recording","version":99,"recording":{"id":[1]},"block_size":"2 KiB"}\n'
    )
    with pytest.raises(UsageError, match="version 99"):
        list(read_recording(tmp_path / "r"))


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UsageError, match="no plain file"):
            list(read_recording(path))


def test_numbers_that_cannot_be_make_a_line_unreadable(tmp_path: Path) -> None:
    Journal(tmp_path / "r", "proxy").close()
    with (tmp_path / "r").open("a") as file:
        file.write(
            '{"kind":"request","id":"a","output_tokens":-5}\n{"kind":"request","id":"a","arrived_unix_s":1e400}\n'
        )
        file.write("[" * 100_000 + "\n")
    assert sum(isinstance(line, Unreadable) for line in read_recording(tmp_path / "r")) == 3
