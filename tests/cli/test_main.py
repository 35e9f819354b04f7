"""The command line as a person meets it: one line per failure, an exit code, and nothing imported that is not needed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S

DRIVER = """
import sys
from netgain.cli.main import Command, run
commands = {
    name: Command(f"sample_commands:{attribute}", f"summary of {name}")
    for name, attribute in {
        "model": "app", "rejected": "rejected", "broken": "broken", "counted": "counted", "waits": "waits",
        "torchy": "needs_torch", "absent": "no_such_attribute",
    }.items()
}
sys.exit(run(sys.argv[1:], commands))
"""


def _start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent), "COLUMNS": "100"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's jobs in the background ignore it
    )


def _run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    with _start(*arguments, **environment) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def test_a_refused_value_is_one_line_and_exit_code_2() -> None:
    code, out, err = _run("rejected", "--rate", "-3")
    assert (code, out) == (2, "")
    assert err == "netgain: rate -3.0 is not positive; give requests per second, such as --rate 2\n"


def test_debug_shows_the_traceback() -> None:
    code, _, err = _run("rejected", NETGAIN_DEBUG="1")
    assert code != 0
    assert "Traceback" in err
    assert "UsageError: rate 1.0 is not positive" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rejected", "--rats", "1"), "No such option: --rats"),
        (("rejected", "--rate", "fast"), "Invalid value for '--rate'"),
        (("model", "inspect"), "Missing argument"),
        (("model", "inspekt"), "No such command 'inspekt'"),
        (("modle",), "No such command 'modle'. Did you mean"),
        (("--verbose",), "No such option: --verbose"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(arguments: tuple[str, ...], message: str) -> None:
    code, out, err = _run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("netgain: ")
    assert message in err
    assert "--help)" in err
    assert err.count("\n") == 1


def test_wrong_usage_names_the_help_of_the_command_below_a_command() -> None:
    _, _, err = _run("model", "inspect")
    assert err == "netgain: Missing argument 'path' (see netgain model inspect --help)\n"


def test_a_fault_of_the_program_is_one_line_too() -> None:
    code, _, err = _run("broken")
    assert code == 1
    assert "internal error" in err
    assert "ZeroDivisionError: division by zero (NETGAIN_DEBUG=1 shows the traceback)" in err
    assert err.count("\n") == 1


def test_a_command_may_choose_its_exit_code() -> None:
    assert _run("counted") == (3, "", "")


def test_a_group_runs_its_subcommand() -> None:
    assert _run("model", "inspect", "a.gguf") == (0, "inspected a.gguf\n", "")


def test_a_missing_extra_is_named_with_its_command() -> None:
    code, _, err = _run("torchy")
    assert code == 1
    assert err == (
        "netgain: 'netgain torchy' needs torch, which the base install lacks: pip install '.[serve]' in netgain's checkout\n"
    )


def test_interrupt_ends_with_130() -> None:
    with _start("waits") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_a_group_alone_shows_its_subcommands() -> None:
    code, out, err = _run("model")
    assert (code, err) == (0, "")
    assert "inspect" in out


def test_help_lists_every_command_and_imports_none() -> None:
    for arguments in (("--help",), ()):
        code, out, err = _run(*arguments)
        assert (code, err) == (0, "")
        assert all(name in out for name in ("model", "rejected", "absent"))


def test_netgain_help_and_version_need_neither_torch_nor_numpy() -> None:
    program = (
        "import sys; from netgain.cli.main import run; code = run(sys.argv[1:]); "
        "assert not {'torch', 'numpy', 'scipy', 'pyarrow'} & set(sys.modules); sys.exit(code)"
    )
    for argument, expected in (("--help", "decide"), ("--version", "netgain 0.")):
        done = subprocess.run(
            [sys.executable, "-c", program, argument], capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


def _netgain(*arguments: str | bytes, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(
        [sys.executable, "-m", "netgain.cli.main", *arguments], timeout=PATIENCE_S, check=False, **options
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (b"\xff\xfe",),
        (b"record", b"--upstream", b"http://\xff:1"),
        (b"record", b"--upstream", b"http://[::1"),
        (b"record", b"--upstream", b"http://h:1/a b"),
        (b"record", b"--upstream", b"http://h:1", b"--rotate-mb", b"inf"),
        (b"record", b"summary", b"/nowhere/\xff"),
        (b"doctor", b"--url", b"http://\xff:1"),
        (b"doctor", b"--url", b"http://[::1"),
        (b"doctor", b"--url", b"http://127.0.0.1:99999"),
        (b"doctor", b"--url", b"http://user:secret@127.0.0.1:1"),
        (b"keys", b"new", b"--tenant", b"\xff"),
        (b"keys", b"ls", b"--file", b"/nowhere/\xff"),
        (b"decide", b"--workload", b"/nowhere/\xff"),
    ],
)
def test_arguments_that_are_no_text_or_no_url_are_one_line_and_exit_code_2(arguments: tuple[bytes, ...]) -> None:
    done = _netgain(*arguments)
    assert (done.returncode, done.stdout) == (2, b""), done.stderr
    assert done.stderr.count(b"\n") == 1
    assert b"internal error" not in done.stderr
    assert b"secret" not in done.stderr


def test_names_that_are_no_text_can_be_printed(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/log\xff"
    Path(os.fsdecode(name)).write_text('{"startTime": 1, "endTime": 2}')
    done = _netgain("record", "import", "--format", "litellm", name, "--output", name + b".out")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"log\\udcff.out" in done.stdout


def test_a_disk_without_room_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = _netgain("--help", stdout=full)
    assert (done.returncode, done.stderr) == (1, b"netgain: no space is left on the device; make room\n")


@pytest.mark.parametrize("arguments", [("--help",), ("doctor", "--no-probe", "--wait", "0.1", "--json")])
def test_a_reader_that_leaves_ends_a_command_in_silence(arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = _netgain(*arguments, stdout=closed)
    assert (done.returncode, done.stderr) == (1, b"")


def test_commands_run_without_any_stream() -> None:
    code = 'exec >&- 2>&- <&-; exec "$0" -m netgain.cli.main keys ls --file /nowhere'
    assert subprocess.run(["sh", "-c", code, sys.executable], timeout=PATIENCE_S, check=False).returncode == 2


SLOW_IMPORT = """
import sys, time
sys.path[:0] = {path!r}
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            print("began", flush=True)
            while True:
                time.sleep(0.05)
sys.meta_path.insert(0, Slow())
from netgain.cli.start import main
main()
"""


@pytest.mark.parametrize("name", ["typer", "netgain.cli.main", "netgain.cli.doctor", "netgain.doctor.examine"])
def test_an_interrupt_while_the_command_is_imported_is_quiet(name: str) -> None:
    """Whatever import takes long."""
    code = SLOW_IMPORT.format(path=sys.path, name=name)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code, "doctor", "--no-probe"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"began\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (-signal.SIGINT, 130)
    assert err == b""


@pytest.mark.parametrize("code", [0, 1, 130])
def test_an_interruption_inside_an_import_ends_with_its_own_code_and_not_by_the_signal(
    tmp_path: Path, code: int
) -> None:
    """CPython remembers an interruption that passed through exec(), and kills itself at the end of `python -m`; another thread,
    as libraries start them, takes the signal also where this one has blocked it."""
    (tmp_path / "interrupted.py").write_text(
        "import threading, time\n"
        "from netgain.cli import main as command_line\n"
        "def run(arguments):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "    try:\n        exec('raise KeyboardInterrupt')\n"
        f"    except KeyboardInterrupt:\n        return {code}\n"
        "command_line.run = run\ncommand_line.main()\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"], capture_output=True, timeout=PATIENCE_S, env=environment
    )
    assert (done.returncode, done.stderr) == (code, b"")
