"""`netgain record` as a person runs it: a proxy until Ctrl-C, then a summary and a file that `netgain decide` takes."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from netgain.cli.main import run
from netgain.measuring.record.as_workload import load_traffic
from tests.measuring.scripted_server import DONE, Script, ScriptedServer, chunk, final_usage
from tests.waiting import PATIENCE_S

CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "private " * 100}]}


async def _first_line(stream: asyncio.StreamReader) -> str:
    return (await asyncio.wait_for(stream.readline(), PATIENCE_S)).decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_recording_ends_whole_and_with_a_summary(number: int, tmp_path: Path, leaves_no_process: None) -> None:
    script = Script(steps=[(0.0, chunk("a")), (0.0, chunk("", finish="stop")), (0.0, final_usage(5)), (0.0, DONE)])
    path = tmp_path / "traffic.jsonl"
    async with ScriptedServer(lambda seen: script) as server:
        command = ("-m", "netgain.cli.main", "record", "--upstream", server.url, "--port", "0", "--output", str(path))
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        told = await _first_line(process.stderr)
        assert told.startswith(f"recording {server.url} at http://127.0.0.1:")
        url = told.split(" at ")[1].split(" ")[0]
        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.post(f"{url}/chat/completions", json=CHAT) as response:
                    assert (await response.read()).endswith(DONE)
        process.send_signal(number)
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert (process.returncode, err) == (0, b"")
    said = out.decode()
    assert said.startswith("3 requests, 0 failed")
    assert "output        p50 5, p95 5, most 5 tokens" in said
    assert "netgain decide --workload" not in said, "without text it would be refused"
    assert "--with-text" in said
    assert "66.7% of the prompts' blocks" in said
    assert "private" not in path.read_text()
    workload = load_traffic(path)
    assert len(workload.items) == 3
    assert workload.synthetic


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--upstream"),
        (["--upstream", "localhost"], "cannot be used"),
        (["--upstream", "http://u:p@h:1"], "holds a password"),
        (["--upstream", "http://h:1", "--host", "no.such.host.invalid"], "cannot listen"),
        (["--upstream", "http://h:1", "--port", "0", "--output", "/proc/nothing"], "cannot append"),
        (["--upstream", "http://h:1", "import", "--format", "vllm", "x"], "does not go together"),
        (["import", "--format", "csv", "x"], "no format 'csv'"),
        (["import", "--format", "vllm", "/nowhere.log"], "cannot read /nowhere.log"),
        (["summary", "/nowhere.jsonl"], "cannot read"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["record", *(arguments or ["--port", "0"])]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_a_recording_with_text_names_the_command_that_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, path = tmp_path / "log.jsonl", tmp_path / "out.jsonl"
    log.write_text('{"startTime": 1, "endTime": 2, "messages": "hi", "prompt_tokens": 3, "completion_tokens": 4}\n')
    command = ["record", "import", "--format", "litellm", str(log), "--output", str(path), "--with-text"]
    assert run(command) == 0
    assert capsys.readouterr().out.endswith(f"\nuse it: netgain decide --workload {path}\n")


def test_an_import_says_what_it_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"startTime": 1, "endTime": 2, "prompt_tokens": 3, "completion_tokens": 4}\nrubbish\n')
    output = str(tmp_path / "out.jsonl")
    assert run(["record", "import", "--format", "litellm", str(log), "--output", output]) == 0
    captured = capsys.readouterr()
    assert captured.err == "not imported: 1 x no JSON\n"
    assert captured.out.startswith("1 request, 0 failed")
    assert run(["record", "summary", output, "--json"]) == 0
    assert '"output_tokens"' in capsys.readouterr().out
    assert run(["record", "import", "--format", "litellm", str(log), "--output", output]) == 2
    assert "exists already" in capsys.readouterr().err


def test_decide_refuses_a_recording_without_text_before_it_starts_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, path = tmp_path / "log.jsonl", str(tmp_path / "out.jsonl")
    log.write_text('{"startTime": 1, "endTime": 2, "prompt_tokens": 3, "completion_tokens": 4}\n')
    assert run(["record", "import", "--format", "litellm", str(log), "--output", path]) == 0
    capsys.readouterr()
    report = tmp_path / "report"
    assert run(["decide", "--workload", path, "--technique", "ngram", "--output", str(report)]) == 2
    told = capsys.readouterr().err
    assert "nothing can be decided on the workload 'out'" in told
    assert "--with-text" in told
    assert told.count("\n") == 1
    assert not report.exists(), "no server was started, so there is no log of one"
