"""The engine process is launched before anything can be refused: what is refused still says so, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.usefixtures("leaves_no_process")

SERVE = (sys.executable, "-m", "netgain.cli.main", "serve")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where the processes put their temporary files; its name is short enough for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("/nowhere/model",), "no model at '/nowhere/model'"),
        (("default", "--host", "no.such.host.invalid"), "cannot listen on host 'no.such.host.invalid'"),
        (("default", "--api-keys", "/nowhere/keys"), "/nowhere/keys"),
        (("default", "--records", "/nowhere/records"), "/nowhere/records"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_exit_code_2(temporary, arguments, message):
    done = subprocess.run(
        [*SERVE, *arguments, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    said = [line for line in done.stderr.splitlines() if not line[:4].isdigit()]  # without the log
    assert len(said) == 1
    assert message in said[0]
    assert _left_in(temporary) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_server_imports_its_half_ends_both_processes(temporary, number):
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen([*SERVE, "default", "--port", "0"], stderr=subprocess.PIPE, env=environment) as process:
        server = psutil.Process(process.pid)
        wait_for(server.children, every_s=0.005)
        family = server.children()
        time.sleep(0.1)
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert not psutil.wait_procs(family, timeout=PATIENCE_S)[1]
    assert _left_in(temporary) == []
