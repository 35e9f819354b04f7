"""Whatever is wrong with a request, the answer has OpenAI's error shape, the right status, and the server goes on."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import psutil
import pytest

from tests.serving.api.holding import held, in_flight
from tests.waiting import PATIENCE_S, wait_for

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "s"}]


def body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


CASES = [
    # path, body, status, what the message must name
    (TEXT, b"[]", 400, "JSON object"),
    (TEXT, b"null", 400, "JSON object"),
    (TEXT, b"true", 400, "JSON object"),
    (TEXT, b"123", 400, "JSON object"),
    (TEXT, b'"x"', 400, "JSON object"),
    (TEXT, b"", 400, "not valid JSON"),
    (TEXT, b"{", 400, "not valid JSON"),
    (TEXT, b'{"prompt": "\xff\xfe"}', 400, "not valid JSON"),
    (TEXT, b'{"prompt": "\\ud800"}', 400, "not valid JSON"),
    (TEXT, b'{"prompt": "s", "temperature": NaN}', 400, "temperature"),
    (TEXT, b'{"prompt": ' + b"[" * 3000 + b"]" * 3000 + b"}", 400, "JSON"),
    (TEXT, body(), 400, "prompt"),
    (TEXT, body(prompt=""), 400, "prompt"),
    (TEXT, body(prompt=[]), 400, "prompt"),
    (TEXT, body(prompt=[""]), 400, "prompt"),
    (TEXT, body(prompt=[[]]), 400, "prompt"),
    (TEXT, body(prompt=[1.5]), 400, "prompt"),
    (TEXT, body(prompt=[True]), 400, "prompt"),
    (TEXT, body(prompt={"a": 1}), 400, "prompt"),
    (TEXT, body(prompt=[-1]), 400, "token ids"),
    (TEXT, body(prompt=[10**9]), 400, "token ids"),
    (TEXT, body(prompt=[10**30]), 400, "token ids"),
    (CHAT, body(messages={}), 400, "messages"),
    (CHAT, body(messages=[]), 400, "messages"),
    (CHAT, body(messages=[{"role": "wizard", "content": "x"}]), 400, "role"),
    (CHAT, body(messages=[{"role": "user", "content": 5}]), 400, "content"),
    (CHAT, body(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]), 400, "image_url"),
    (CHAT, body(messages=[{"role": "user", "content": [None]}]), 400, "content"),
    (CHAT, body(messages=[{"role": "user", "content": ""}]), 400, "renders"),
    (CHAT, body(messages=[*USER, {"role": "system", "content": "x"}]), 400, "the system turn comes first"),
    (CHAT, body(messages=["s"]), 400, "messages"),
    (CHAT, body(messages=USER, model=7), 400, "model"),
    (CHAT, body(messages=USER, stream="yes"), 400, "stream"),
    (CHAT, body(messages=USER, stream_options={"include_usage": True}), 400, "stream_options"),
    (CHAT, body(messages=USER, temperature="hot"), 400, "temperature"),
    (CHAT, body(messages=USER, temperature="0"), 400, "temperature"),
    (CHAT, body(messages=USER, temperature=-1), 400, "temperature"),
    (CHAT, body(messages=USER, temperature=True), 400, "temperature"),
    (CHAT, body(messages=USER, top_p=1.5), 400, "top_p"),
    (CHAT, body(messages=USER, top_p=-0.1), 400, "top_p"),
    (CHAT, body(messages=USER, top_k=-2), 400, "top_k"),
    (CHAT, body(messages=USER, top_k=1.5), 400, "top_k"),
    (CHAT, body(messages=USER, min_p=2), 400, "min_p"),
    (CHAT, body(messages=USER, seed="x"), 400, "seed"),
    (CHAT, body(messages=USER, seed=2**63), 400, "seed"),
    (CHAT, b'{"messages": [], "n": ' + b"9" * 6000 + b"}", 400, "n"),
    (CHAT, b'{"messages": [], "n": ' + b"9" * 4000 + b"}", 400, "n"),
    (CHAT, body(messages=USER, cache_salt=""), 400, "cache_salt"),
    (CHAT, body(messages=USER, cache_salt=7), 400, "cache_salt"),
    (CHAT, body(messages=USER, cache_salt=["a"]), 400, "cache_salt"),
    (CHAT, body(messages=USER, stream=True, stream_options={"include_usage": 1}), 400, "stream_options"),
    (CHAT, body(messages=USER, stream=True, stream_options=True), 400, "stream_options"),
    (CHAT, body(messages=USER, max_tokens=0), 400, "max_tokens"),
    (CHAT, body(messages=USER, max_tokens=-5), 400, "max_tokens"),
    (CHAT, body(messages=USER, max_tokens=True), 400, "max_tokens"),
    (CHAT, body(messages=USER, max_tokens=10**9), 400, "4096"),
    (CHAT, body(messages=USER, max_completion_tokens=10**9), 400, "4096"),
    (CHAT, body(messages=USER, max_tokens=4096), 400, "at most 4095"),
    (TEXT, body(prompt="s" * 4096), 400, "4096 tokens"),
    (TEXT, body(prompt="s" * 5000), 400, "5000 tokens"),
    (TEXT, body(prompt="s" * 4000, max_tokens=100), 400, "at most 96"),
    (CHAT, body(messages=USER, n=0), 400, "n"),
    (CHAT, body(messages=USER, n=-1), 400, "n"),
    (CHAT, body(messages=USER, n=True), 400, "n"),
    (CHAT, body(messages=USER, n=10**6), 400, "limit of this server is 4"),
    (TEXT, body(prompt=["s"] * 65), 400, "64"),
    (TEXT, body(prompt=["s"] * 4, n=2), 400, "8 answers at once"),
    (CHAT, body(messages=USER, stop=""), 400, "stop"),
    (CHAT, body(messages=USER, stop=["x"] * 17), 400, "stop"),
    (CHAT, body(messages=USER, stop=[1]), 400, "stop"),
    (CHAT, body(messages=USER, stop="x" * 1025), 400, "stop"),
    (CHAT, body(messages=USER, stop_token_ids=[10**6]), 400, "stop_token_ids"),
    (CHAT, body(messages=USER, stop_token_ids=[-1]), 400, "stop_token_ids"),
    (CHAT, body(messages=USER, top_logprobs=10**9), 400, "top_logprobs"),
    (CHAT, body(messages=USER, logprobs=True, top_logprobs=385), 400, "top_logprobs"),
    (TEXT, body(prompt="s", logprobs=10**9), 400, "logprobs"),
    (TEXT, body(prompt="s", prompt_logprobs=10**9), 400, "prompt_logprobs"),
    (TEXT, body(prompt="s", min_tokens=10**9), 400, "min_tokens"),
    (TEXT, body(prompt="s", best_of=10**6), 400, "best_of"),
    (TEXT, body(prompt="s", max_tokens=10**30), 400, "max_tokens"),
    (TEXT, body(prompt="s", logit_bias={str(n): 1 for n in range(4000)}), 400, "1024"),
    (TEXT, body(prompt="s", stop=["x"] * 10_000), 400, "16"),
    (TEXT, body(prompt="s", stop_token_ids=[0] * 10_000), 400, "64"),
    (TEXT, body(prompt=["s"] * 10_000), 400, "at most"),
    (CHAT, body(messages=[{"role": "user"}]), 400, "content"),
    (CHAT, body(messages=[{"role": "tool", "content": "x", "tool_call_id": "1"}]), 400, "tool_call_id"),
    (CHAT, b'\xef\xbb\xbf{"messages": []}', 400, "messages"),
    ("/tokenize", b"[]", 400, "JSON object"),
    ("/detokenize", b'{"tokens": [1000000000]}', 400, "tokens"),
    *(
        (path, body(**{**asked, "response_format": wanted}), 400, "response_format")
        for path, asked in ((CHAT, {"messages": USER}), (TEXT, {"prompt": "s"}))
        for wanted in (
            {},
            [],
            {"type": "yaml"},
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": {}},
            {"type": "json_schema", "json_schema": {"name": "x"}},
            {"type": "json_schema", "json_schema": {"schema": {}}},
            {"type": "json_schema", "json_schema": {"name": "x", "schema": 5}},
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such"}}},
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}},
        )
    ),
    (CHAT, body(messages=USER, tools=[{"type": "function"}]), 400, "tools"),
    (CHAT, body(messages=USER, netgain={"record": "yes"}), 400, "netgain.record"),
    (CHAT, body(messages=USER, netgain={"recrod": True}), 400, "no field 'recrod'; did you mean 'record'?"),
    (TEXT, body(prompt="s", netgain={"record": True, "": 1}), 400, "its fields are record, tokens, speculate"),
    (CHAT, body(messages=USER, model="gpt-9"), 404, "gpt-9"),
    (TEXT, body(prompt="s" * 70_000), 413, "65536"),
    ("/v1/chat", b"{}", 404, "Not Found"),
    ("/v1/responses", b"{}", 404, "use /v1/chat/completions"),
    ("/v1/models/gpt-9", None, 404, "gpt-9"),
    ("/netgain/step-cost?budget_s=soon", None, 400, "budget_s"),
    ("/netgain/step-cost?budget_s=1000", None, 400, "budget_s"),
    ("/netgain/step-cost?budget_s=nan", None, 400, "budget_s"),
]


@pytest.mark.parametrize(("path", "data", "status", "names"), CASES)
def test_bad_requests_are_answered_in_openais_shape(server, path, data, status, names):
    """vllm-project/vllm#7632, vllm-project/vllm#765, vllm-project/vllm#42961, nomic-ai/gpt4all#3635."""
    answer = server.send(path, data)
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json) == {"error"}
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert names in answer.json["error"]["message"]
    assert "Traceback" not in answer.body.decode()


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_a_client_that_sends_far_too_much_still_reads_why_it_was_refused(server, connection):
    """nomic-ai/gpt4all#3635."""
    client = HTTPConnection(server.url.removeprefix("http://"), timeout=20)
    client.request("POST", TEXT, body(prompt="s" * (16 << 20)), {"Connection": connection})
    answer = client.getresponse()
    assert answer.status == 413
    assert b"65536" in answer.read()
    client.close()


def test_requests_for_enormous_amounts_take_no_memory(server):
    """nomic-ai/gpt4all#3635, sgl-project/sglang#40099, oobabooga/textgen#7657."""
    processes = [psutil.Process(pid) for pid in (server.process.pid, server.engine_pid)]
    before = [process.memory_info().rss for process in processes]
    for name in ("n", "max_tokens", "min_tokens", "best_of", "prompt_logprobs", "logprobs", "top_k"):
        answer = server.post(TEXT, prompt="s", **{name: 10**9})
        assert answer.status == (200 if name == "top_k" else 400)
    assert all(process.memory_info().rss - size < 32 << 20 for process, size in zip(processes, before, strict=True))


def test_a_wrong_method_is_answered_in_openais_shape(server):
    answer = server.send(CHAT, method="GET")
    assert answer.status == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json["error"]["message"] == "Method Not Allowed: this path takes POST"
    assert answer.json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": 1},
        {"top_k": 384},
        {"top_k": 10**7},
        {"top_k": 10**30},
        {"top_p": 0},
        {"top_p": 1e-9},
        {"temperature": 1e-12},
        {"temperature": 1e-5},
        {"temperature": 0.01},
        {"seed": -1},
        {"seed": 2**62},
        {"seed": -(2**63)},
        {"stop": None},
        {"n": None, "stop": [], "logprobs": False, "user": "me", "metadata": {"a": "b"}, "store": False},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"}},
    ],
)
def test_legal_extremes_are_served(server, fields):
    answer = server.post(CHAT, messages=USER, max_tokens=8, **fields)
    assert answer.status == 200, answer.body
    assert answer.json["choices"][0]["message"]["content"] == "short answer"


def test_content_in_parts_is_joined(server):
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "s"}]
    assert server.ask(True, parts).json["choices"][0]["message"]["content"] == "short answer"


def test_a_full_queue_answers_429_at_once_and_everyone_else_is_served(server):
    def ask(_: int) -> tuple[int, float, str | None]:
        started = time.monotonic()
        answer = server.ask(False, "l", max_tokens=150)
        return answer.status, time.monotonic() - started, answer.headers["retry-after"]

    with ThreadPoolExecutor(20) as pool:
        with held(server.engine_pid):  # so that they all come at once
            asked = [pool.submit(ask, number) for number in range(20)]
            wait_for(lambda: in_flight(server) == 20)
        answers = [one.result(PATIENCE_S) for one in asked]
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 6  # the queue takes six in one go
    assert all(retry is not None for status, _, retry in answers if status == 429)
    slowest_refusal = max(took for status, took, _ in answers if status == 429)
    assert slowest_refusal < max(took for status, took, _ in answers if status == 200)
    assert server.ask(False, "s").status == 200


def test_nothing_of_all_this_restarted_the_engine(server):
    health = server.health()
    assert health["status"] == "ready"
    assert health["replicas"][0]["restarts"] == 0
    assert not [line for line in server.lines if "Traceback" in line]
