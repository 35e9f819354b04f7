"""Servers that answer nobody without a header: a whole decision sends it with everything that it asks, and keeps it nowhere."""

import json
import shlex
import sys
from contextlib import ExitStack

import pytest
from aiohttp import web

from netgain.cli.exit_codes import CANNOT_TELL, DONE
from netgain.cli.main import run
from netgain.deciding.decide.drafts import arm_memory
from netgain.deciding.decide.engines import engine_version
from netgain.deciding.decide.server import measure_step_cost, served_model, step_counts
from netgain.deciding.experiment.arms.attached import AttachedServer
from netgain.deciding.kv.asking import counters
from netgain.deciding.kv.prompts import tokens_per_word
from tests.deciding.compare import paced_server

SECRET = "s3cret-of-the-arms"
ANSWER = " ".join(f"word{place}" for place in range(8))
TOKEN_S = 0.006
GIVEN = (DONE, CANNOT_TELL)  # a verdict, whichever
HEADER = ("--header", f"Authorization=Bearer {SECRET}")
EVERYWHERE = {  # that a decision on vLLM asks for: a path that is missing here was not shown to have its header
    "/v1/models",
    "/metrics",
    "/version",
    "/server_info",
    "/tokenize",
    "/v1/completions",
    "/reset_prefix_cache",
}


@pytest.fixture
def asked(tmp_path):
    """Prompts and tasks on disk, the options that name them, and those of a server that logs what it is asked."""
    lines = [
        {"id": f"p{n}", "category": "c", "max_tokens": 8, "prompt": f"{n} {ANSWER} {ANSWER} word0"} for n in range(12)
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "prompt": "1 + 1 =", "expected": 2, "max_tokens": 4}\n')
    (tmp_path / "key").write_text(SECRET)
    served = {"key_file": tmp_path / "key", "log": tmp_path / "log", "token_s": TOKEN_S}
    options = ["decide", "--quick", "--engine", "vllm", "--model", "m", "--workload", str(tmp_path / "prompts.jsonl")]
    options += ["--technique", "ngram", "--tasks", str(tmp_path / "tasks.jsonl"), "--output", str(tmp_path / "out")]
    return options, served


def checked(tmp_path):
    """Everything was asked for with the header, and no file of the run holds it."""
    seen = (tmp_path / "log").read_text().splitlines()
    assert not [line for line in seen if not line.startswith("let in ")]
    assert {line.removeprefix("let in ") for line in seen} >= EVERYWHERE
    kept = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {"report.html", "verdict.json", "decision.json", "records.jsonl"} <= {path.name for path in kept}
    assert not [path for path in kept if SECRET in path.read_text()]


def test_a_decision_on_servers_that_it_starts_sends_the_header_everywhere(asked, tmp_path, capfd, leaves_no_process):
    options, served = asked
    served["paces"] = json.dumps({"ngram": TOKEN_S / 3})
    words = [sys.executable, paced_server.__file__, *paced_server.options_of(served)]
    command = f"{shlex.join(words)} --port {{port}} --model {{model}} {{flags}}"
    assert run([*options, "--command", command, *HEADER]) in GIVEN
    checked(tmp_path)
    assert SECRET not in "".join(capfd.readouterr())


def test_a_decision_on_servers_behind_hooks_sends_the_header_everywhere(asked, tmp_path, capfd):
    options, served = asked
    hooks = tmp_path / "hooks.yaml"
    seen = tmp_path / "environment"
    start = f'env >> {seen}; cat {tmp_path}/"$NETGAIN_ARM".url'
    hooks.write_text(json.dumps({"engine": "vllm", "start": start, "stop": "true"}))
    with ExitStack() as stack:
        # other answers, so that where they part is looked for
        for name, more in {"baseline": {}, "candidate": {"says": "other"}}.items():
            url = stack.enter_context(paced_server.paced_server(**served, **more))
            (tmp_path / f"{name}.url").write_text(json.dumps({"url": url}) + "\n")
        assert run([*options, "--hooks", str(hooks), *HEADER]) in GIVEN
    checked(tmp_path)
    assert SECRET not in "".join(capfd.readouterr())
    assert SECRET not in seen.read_text(), "what netgain starts does not find it in its environment either"


def test_measuring_and_quality_send_the_header_everywhere(asked, tmp_path, capfd):
    workload, tasks = str(tmp_path / "prompts.jsonl"), str(tmp_path / "tasks.jsonl")
    with paced_server.paced_server(**asked[1]) as url:
        output = str(tmp_path / "out" / "measured")
        assert run(["measure", url, "--workload", workload, "--requests", "4", "--output", output, *HEADER]) == DONE
        assert run(["quality", url, "--texts", "none", "--tasks", tasks, *HEADER]) == DONE
    seen = (tmp_path / "log").read_text().splitlines()
    assert seen
    assert not [line for line in seen if not line.startswith("let in ")]
    assert not [
        path for path in (tmp_path / "out").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert SECRET not in "".join(capfd.readouterr())


async def test_what_only_netgain_is_asked_has_the_header_too(tmp_path):
    refused: list[str] = []
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.headers.get("Authorization") != f"Bearer {SECRET}":
            refused.append(request.path)
            raise web.HTTPUnauthorized
        if request.path == "/metrics":
            return web.Response(text="# TYPE netgain_suffix_index_bytes gauge\nnetgain_suffix_index_bytes 8\n")
        if request.path == "/tokenize":
            return web.json_response({"count": 7})
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        raise web.HTTPNotFound

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    headers = {"Authorization": f"Bearer {SECRET}"}
    arm = AttachedServer("baseline", f"http://127.0.0.1:{runner.addresses[0][1]}", "netgain", headers=headers)
    try:
        assert (await served_model(arm.url, headers)).name == "m"
        assert await step_counts(arm.url, headers) is None
        assert (await measure_step_cost(arm.url, headers, 1))[0] is None
        assert await engine_version("netgain", arm.url, headers) is None
        assert (await arm_memory(arm)).suffix_index_bytes == 8
        assert await tokens_per_word(arm, "m") > 0.0
        assert (await counters(arm)).families
        assert refused == []
        assert set(asked) == {"/v1/models", "/metrics", "/netgain/step-cost", "/tokenize"}
    finally:
        await runner.cleanup()
