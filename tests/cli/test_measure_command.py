"""`netgain measure` as a person types it."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from netgain.cli.main import run
from tests.measuring.scripted_server import DONE, Script, ScriptedServer, chunk
from tests.waiting import PATIENCE_S

SAMPLES = Path(__file__).parents[1] / "measuring/measurement/samples"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name the server"),
        (["localhost"], "cannot be used"),
        (["http://h:1", "--concurrency", "2", "--rate", "3"], "give one of them"),
        (["http://h:1", "--arrivals", "poisson"], "need a rate"),
        (["http://h:1", "--arrivals", "waves"], "no arrivals 'waves'"),
        (["http://h:1", "--rate", "-1"], "request rate is -1"),
        (["http://h:1", "--rate", "1", "--arrivals", "bursty", "--cv", "0"], "cv of bursty"),
        (["http://h:1", "--saturate"], "needs an SLO"),
        (["http://h:1", "--saturate", "--slo", "e2e=1s"], "needs an SLO with ttft or itl"),
        (["http://h:1", "--saturate", "--slo", "ttft=1s", "--concurrency", "2"], "leave out --concurrency"),
        (["http://h:1", "--slo", "fast"], "'fast' is not understood"),
        (["http://h:1", "--budget", "0"], "budget is 0"),
        (["http://h:1", "--price", "-1"], "the price '-1' is not understood"),
        (["http://h:1", "--price", "nan"], "the price 'nan' is not understood"),
        (["http://h:1", "--price", "2USD", "--devices", "0"], "the devices are 0"),
        (["http://h:1", "--devices", "2"], "give a price"),
        (["http://h:1", "--rate", "1", "--duration", "inf"], "duration is inf"),
        (["http://h:1", "--rate", "1", "--warm-up", "inf"], "warm-up is inf"),
        (["http://[::1"], "cannot be used"),
        (["http://h:1", "--metrics", "ftp://h:1/metrics"], "cannot be used"),
        (["http://h:1", "--workload", "caht"], "did you mean 'chat'"),
        (["http://h:1", "--workload", "edit", "--arrivals", "recorded"], "recorded arrivals need a recording"),
        (["http://h:1", "--header", "secret"], "write NAME=VALUE"),
        (["http://h:1", "--header", "Key=a\r\nOther: b"], "characters that cannot be sent"),
        (["http://h:1", "--header", "My Key=a"], "header name 'My Key'"),
        (["http://h:1", "--seed", "-1"], "seed is -1"),
        (["http://h:1", "--seed", "99999999999999999999"], "seed is 99999999999999999999"),
        (["http://h:1", "--temperature", "nan"], "temperature is nan"),
        (["http://h:1", "--temperature", "3"], "temperature is 3"),
        (["http://h:1", "--timeout", "inf"], "timeout is inf"),
        (["http://h:1", "--saturate", "--slo", "ttft=1s", "--rate", "0"], "request rate is 0"),
        (["http://h:1", "--saturate", "--slo", "ttft=1s", "--rate", "nan"], "request rate is nan"),
        (["http://h:1", "--import", "x.json"], "does not go together"),
        (["--import", "x.json", "--rate", "2", "--saturate"], "leave out --rate, --saturate"),
        (["http://h:1", "--from", "guidellm"], "name its file with --import"),
        (["--import", "/nowhere.json"], "cannot read /nowhere.json"),
        (["--import", str(SAMPLES / "vllm-bench-summary.json"), "--from", "wrk"], "results of 'wrk' cannot be read"),
        (["--import", str(SAMPLES / "vllm-bench-summary.json"), "--from", "guidellm"], "cannot be read as a result"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["measure", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_import_is_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["measure", "--import", str(SAMPLES / "guidellm-0.8.1.json"), "--output", str(tmp_path / "out")]
    assert run([*command, "--slo", "ttft=1s"]) == 0
    told = capsys.readouterr().out
    assert "measured by guidellm 0.8.1" in told
    assert "ttft.p95=1s holds" in told
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "out/measurement.json").read_text())


@pytest.mark.parametrize(("status", "code"), [(200, 0), (500, 1)])
async def test_the_exit_code_says_whether_there_is_a_figure(
    status: int, code: int, tmp_path: Path, leaves_no_process: None
) -> None:
    good = Script([(0.0, chunk("a", finish="stop")), (0.0, DONE)])
    bad = Script(status=status, content_type="application/json")
    (tmp_path / "one.jsonl").write_text('{"id": "a", "category": "c", "max_tokens": 2, "prompt": "Hello"}')
    seen = 0

    def script(_: object) -> Script:
        nonlocal seen
        seen += 1
        return good if seen <= 3 or status == 200 else bad

    async with ScriptedServer(script) as server:
        command = ("-m", "netgain.cli.main", "measure", server.url, "--workload", "one.jsonl", "--output", "out")
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert (process.returncode, err) == (code, b"")
    assert b"Latency from the scheduled time" in out
    assert (tmp_path / "out/measurement.json").is_file()


@pytest.mark.parametrize("blocks", [0, 3])
async def test_a_disk_that_is_full_at_the_end_costs_the_file_and_not_the_figures(blocks: int, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: of 0, and of one that the figures fit into, not the requests."""
    good = Script([(0.0, chunk("a", finish="stop")), (0.0, DONE)])
    lines = [{"id": f"i{n}", "category": "c", "max_tokens": 2, "prompt": f"Hello {n}"} for n in range(300)]
    (tmp_path / "some.jsonl").write_text("\n".join(map(json.dumps, lines)))
    async with ScriptedServer(lambda _: good) as server:
        command = f"ulimit -f {8 * blocks}; exec {sys.executable} -m netgain.cli.main measure {server.url}"
        command += " --workload some.jsonl --concurrency 4 --output out"
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 1, err
    assert b"Latency from the scheduled time" in out
    assert b"the load was sent, but cannot write" in err
    assert err.count(b"\n") == 1
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == ({"measurement.json"} if blocks else set())


async def test_a_workload_whose_name_is_no_text_is_measured(tmp_path: Path) -> None:
    good = Script([(0.0, chunk("a", finish="stop")), (0.0, DONE)])
    name = tmp_path / "prompts-\udcff.jsonl"
    name.write_text('{"id": "a", "category": "c", "max_tokens": 2, "prompt": "Hello"}')
    async with ScriptedServer(lambda _: good) as server:
        code = await asyncio.to_thread(
            run, ["measure", server.url, "--workload", str(name), "--output", str(tmp_path / "out")]
        )
    assert code == 0
    assert json.loads((tmp_path / "out/measurement.json").read_bytes())["prompts"]["name"] == "prompts-?"
