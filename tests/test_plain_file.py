"""What a user names as a file may be anything."""

import os
import resource
import threading
from pathlib import Path

import msgspec
import pytest

from netgain.cli.main import run
from netgain.errors import UsageError
from netgain.plain_file import as_text, claimed, read_plain, unused, write_whole


def test_a_file_and_a_pipe_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"piped",))
    writer.start()
    assert (read_plain(tmp_path / "file"), read_plain(tmp_path / "pipe")) == (b"text", b"piped")
    writer.join()


@pytest.mark.parametrize(
    "arguments",
    [
        ["measure", "http://127.0.0.1:9", "--workload", "/dev/zero"],
        ["measure", "--import", "/dev/zero"],
        ["compare", "--baseline", "/dev/zero", "--candidate", "/dev/zero"],
        ["compare", "--baseline", "http://h:1", "--candidate", "http://h:2", "--tasks", "/dev/zero"],
        ["quality", "http://127.0.0.1:9", "--texts", "/dev/zero"],
        ["quality", "http://127.0.0.1:9", "--tasks", "/dev/zero"],
        ["guard", "/dev/zero", "http://127.0.0.1:9"],
        ["decide", "--hooks", "/dev/zero"],
        ["decide", "--workload", "/dev/zero"],
    ],
)
def test_a_device_without_an_end_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "/dev/zero" in told


def test_a_folder_that_one_run_writes_to_is_refused_to_another(tmp_path: Path) -> None:
    with (
        claimed(tmp_path / "out"),
        pytest.raises(UsageError, match="another run of netgain is writing"),
        claimed(tmp_path / "out"),
    ):
        pass
    with claimed(tmp_path / "out"):  # free again
        pass
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    write_whole(tmp_path / "file", b"before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_whole(tmp_path / "file", b"x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "file").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_new_folder_is_one_that_is_not_there(tmp_path: Path) -> None:
    for name in ("run", "run-2", "run-3"):
        assert unused(tmp_path / "run") == tmp_path / name
        (tmp_path / name).mkdir()


def test_a_name_that_is_no_text_can_stand_in_a_document() -> None:
    assert msgspec.json.encode(as_text("prompts-\udcff")) == b'"prompts-?"'
