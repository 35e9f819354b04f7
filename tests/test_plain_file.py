"""What a user names as a file may be anything."""

import os
import threading
from pathlib import Path

import pytest

from netgain.cli.main import run
from netgain.plain_file import read_plain


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
