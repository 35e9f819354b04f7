"""A server that asks for keys and bounds what each client may hold: who gets in, and what the slow, the greedy and the broken
do to others."""

import contextlib
import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psutil
import pytest

from netgain.ledger.export import read_jsonl
from netgain.ledger.records import RequestRecord
from netgain.serving.api.keys import KeyLimits, new_key, revoke_key
from tests.serving.api.holding import held, in_flight
from tests.waiting import PATIENCE_S, wait_for

CHUNK = b"1\r\n{\r\n"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory):
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module")
def key(key_file):
    return new_key(key_file, "acme", KeyLimits())


@pytest.fixture(scope="module")
def records(key_file):
    return key_file.with_name("records.jsonl")


@pytest.fixture(scope="module")
def server(start_server, server_options, key_file, key, records):
    settings = ("auth.metrics=operator", "server.max_head_bytes=4096", "server.max_connections=24")
    options = (*(part for setting in settings for part in ("--set", setting)), "--records", str(records))
    with start_server(*server_options, "--api-keys", str(key_file), *options) as started:
        yield started


@pytest.fixture(scope="module")
def impatient(start_server, server_options, key_file, key):
    """A server that waits so little for its clients that one on a busy machine could meet its limits by chance."""
    settings = (
        "server.head_timeout_s=0.6",
        "server.body_timeout_s=0.6",
        "server.write_timeout_s=0.6",
        "send_buffer_bytes=4096",
    )
    options = (part for setting in settings for part in ("--set", setting))
    with start_server(*server_options, "--api-keys", str(key_file), *options) as started:
        yield started


def ask(server, key, prompt="s", **fields):
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    body = json.dumps({"prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}).encode()
    return server.send("/v1/completions", body, headers=headers)


def connect(server) -> socket.socket:
    at = urlsplit(server.url)
    return socket.create_connection((at.hostname, at.port), timeout=PATIENCE_S)


def head(key, *lines, path="/v1/completions") -> bytes:
    return "\r\n".join((f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", *lines, "", "")).encode()


def can_send(client, data) -> bool:
    try:
        client.sendall(data)
    except ConnectionError:
        return False
    return True


def read_all(client) -> bytes:
    parts = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic eDp5", "Bearer nonsense", "Bearer ng-00000000-x", "Bearer \xff\xfe", "KEY"],
)
def test_without_a_valid_key_there_is_401_in_openais_shape(server, key, header):
    headers = {} if header is None else {"Authorization": header.replace("KEY", key)}
    for path, body in (("/v1/completions", b"{}"), ("/v1/models", None), ("/metrics", None), ("/v1/nothing", b"")):
        answer = server.send(path, body, headers=headers)
        assert answer.status == 401
        assert answer.json["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_wrong_secret_is_refused_and_the_right_one_still_taken(server, key):
    for _ in range(3):
        assert ask(server, key[:-1] + ("A" if key[-1] != "A" else "B")).status == 401
    assert ask(server, key).json["choices"][0]["text"] == "short answer"
    assert ask(server, key, temperature="hot").status == 400
    wait_for(lambda: any(f"by acme/{key.split('-')[1]} refused" in line for line in server.lines))
    assert all(key.partition("-")[2].partition("-")[2] not in line for line in server.lines), "a key is in the log"


def test_health_is_open_and_operators_alone_read_protected_metrics(server, key, key_file):
    assert server.send("/health").status == server.send("/health/live").status == 200
    operator = new_key(key_file, "staff", KeyLimits(), operator=True)
    bearer = {"Authorization": f"Bearer {operator}"}
    wait_for(lambda: server.send("/metrics", headers=bearer).status == 200)  # the new key is seen without a signal
    assert server.send("/metrics", headers={"Authorization": f"Bearer {key}"}).status == 403
    assert server.send("/netgain/step-cost", headers={"Authorization": f"Bearer {key}"}).status == 403
    assert server.send("/netgain/settings", headers={"Authorization": f"Bearer {key}"}).status == 403
    assert server.send("/netgain/settings", headers=bearer).json["auth"]["keys_file"] == str(key_file)


def test_two_keys_of_a_tenant_share_a_prefix_and_two_tenants_never(server, key, key_file):
    """smg-project/smg#2420 and sgl-project/sglang#37160: what one tenant computed was found by another."""
    sibling = new_key(key_file, "acme", KeyLimits())
    stranger = new_key(key_file, "other", KeyLimits())
    os.kill(server.process.pid, signal.SIGHUP)
    prompt = "a prompt of its own for this test, " * 4 + "s"

    def cached(key, **fields):
        return ask(server, key, prompt, **fields).json["usage"]["prompt_tokens_details"]["cached_tokens"]

    wait_for(lambda: ask(server, stranger).status == 200)
    assert cached(key) == 0
    assert cached(sibling) > 0
    assert cached(stranger) == 0
    assert cached(stranger) > 0
    assert cached(key, cache_salt="mine") == 0  # within the tenant
    assert cached(sibling, cache_salt="mine") > 0
    assert cached(stranger, cache_salt="mine") == 0
    assert cached(stranger, cache_salt="acme") == 0


def test_records_name_tenant_and_key_id_and_never_the_key(server, key, records):
    answer = ask(server, key, netgain={"record": True}).json["netgain"]
    record = answer[0] if isinstance(answer, list) else answer
    assert (record["tenant"], record["key_id"]) == ("acme", key.split("-")[1])
    wait_for(lambda: key.split("-")[1] in records.read_text())
    assert key.partition("-")[2].partition("-")[2] not in records.read_text()


def test_limits_of_a_key_are_429_with_a_time_that_holds(server, key_file):
    hasty = new_key(key_file, "hasty", KeyLimits(requests_per_minute=20, max_tokens=5, max_in_flight=1))
    wait_for(lambda: ask(server, hasty).status != 401)
    over = ask(server, hasty, max_tokens=6)
    assert (over.status, over.json["error"]["param"]) == (400, "max_tokens")
    assert ask(server, hasty, priority=-1, max_tokens=1).json["error"]["param"] == "priority"
    answers = []
    wait_for(lambda: answers.append(ask(server, hasty, max_tokens=1)) or answers[-1].status == 429)
    assert answers[-2].headers["x-ratelimit-limit-requests"] == "20"
    assert answers[-2].headers["x-ratelimit-remaining-requests"] == "0"
    assert answers[-1].json["error"]["code"] == "requests_limit_exceeded"
    time.sleep(float(answers[-1].headers["retry-after"]))
    assert ask(server, hasty, max_tokens=1).status == 200


def test_tokens_per_minute_are_charged_as_used(server, key_file):
    frugal = new_key(key_file, "frugal", KeyLimits(tokens_per_minute=600))
    wait_for(lambda: ask(server, frugal).status != 401)
    remaining = [int(ask(server, frugal, max_tokens=400).headers["x-ratelimit-remaining-tokens"]) for _ in range(3)]
    assert min(remaining) > 0, "what was set aside was not given back"
    refused = [ask(server, frugal, "l", max_tokens=400) for _ in range(2)][-1]
    assert (refused.status, refused.json["error"]["code"]) == (429, "tokens_limit_exceeded")
    assert 0 < int(refused.headers["retry-after"]) <= 60


def test_a_revoked_key_is_refused_while_its_running_request_ends_well(server, key_file):
    leaving = new_key(key_file, "leaving", KeyLimits())
    wait_for(lambda: ask(server, leaving).status == 200)
    said = len(server.lines)
    with ThreadPoolExecutor(1) as pool:
        with held(server.engine_pid):
            running = pool.submit(ask, server, leaving, "l", max_tokens=500)
            wait_for(lambda: in_flight(server) == 1)
            revoke_key(key_file, leaving)
            wait_for(lambda: any("are accepted" in line for line in server.lines[said:]))
            assert ask(server, leaving).status == 401
        assert running.result(PATIENCE_S).json["usage"]["completion_tokens"] == 500


def test_a_damaged_key_file_changes_nothing_and_is_logged(server, key, key_file):
    good = key_file.read_bytes()
    try:
        key_file.write_bytes(b"{")
        wait_for(lambda: any("the API keys stay as they are" in line for line in server.lines))
        assert ask(server, key).status == 200
    finally:
        key_file.write_bytes(good)
    wait_for(lambda: "keys are accepted" in " ".join(server.lines[-3:]))


def test_a_chunked_body_over_the_limit_is_413_though_it_announces_no_length(server, key):
    with connect(server) as client:
        client.sendall(head(key, "Transfer-Encoding: chunked"))
        piece = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
        for _ in range(3):
            client.sendall(piece)
        assert b" 413 " in client.recv(4096).split(b"\r\n")[0]
        wait_for(lambda: not can_send(client, CHUNK))  # it may go on sending for a moment, and then is cut off


def test_a_body_that_trickles_is_408(impatient, key):
    with connect(impatient) as client:
        client.sendall(head(key, "Content-Length: 1000"))
        client.settimeout(0.1)
        answer = b""
        for _ in range(900):  # without a limit it would be whole only after these
            client.sendall(b"{")
            try:
                answer = client.recv(4096)
            except TimeoutError:
                continue
            break
        client.settimeout(PATIENCE_S)
        while piece := client.recv(4096):  # head and body may come apart; then the connection ends
            answer += piece
        assert b" 408 " in answer.split(b"\r\n")[0]
        assert b"request_timeout" in answer


@pytest.mark.parametrize("sent", [b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_does_not_come_closes_the_connection(impatient, sent):
    with connect(impatient) as client:
        client.sendall(sent)
        assert read_all(client) == b"", "closed, else reading would time out"


def test_a_head_that_is_too_large_is_431(server, key):
    with connect(server) as client:
        client.sendall(head(key, *(f"X-{number}: {'y' * 100}" for number in range(60))))
        assert b" 431 " in read_all(client).split(b"\r\n")[0]


@pytest.mark.parametrize("sent", ["handshake", "chunk", "length"])
def test_what_is_no_http_gets_400_in_the_same_shape(server, key, sent):
    """vllm-project/vllm#42961."""
    with connect(server) as client:
        client.sendall(
            {
                "handshake": b"\x16\x03\x01 hello\r\n\r\n",
                "chunk": head(key, "Transfer-Encoding: chunked") + b"2\r\n{}\r\nzz\r\n",
                "length": head(key, "Content-Length: ten") + b"{}",
            }[sent]
        )
        answer = read_all(client)
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_one_connection_too_many_gets_503_and_the_others_stay(server, key):
    with connect(server) as served, contextlib.ExitStack() as others:
        data = json.dumps({"prompt": "s", "temperature": 0, "max_tokens": 8}).encode()
        served.sendall(head(key, f"Content-Length: {len(data)}") + data[:-1])  # and waits
        for _ in range(23):
            others.enter_context(connect(server))
        time.sleep(0.1)
        with connect(server) as refused:
            assert b" 503 " in read_all(refused).split(b"\r\n")[0]
        served.sendall(data[-1:])
        answer = b""
        while b"short answer" not in answer:
            part = served.recv(65536)
            assert part, answer
            answer += part
    wait_for(lambda: server.send("/health").status == 200)


def test_a_client_that_never_reads_is_disconnected_and_stalls_nobody(impatient, key):
    server = impatient
    http = psutil.Process(server.process.pid)
    files = http.num_fds()
    data = json.dumps({"prompt": "l", "temperature": 0, "max_tokens": 4000, "stream": True, "logprobs": 5}).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        at = urlsplit(server.url)
        client.connect((at.hostname, at.port))
        client.sendall(head(key, f"Content-Length: {len(data)}") + data)
        wait_for(lambda: in_flight(server) == 1)
        assert ask(server, key).json["choices"][0]["text"] == "short answer"
        wait_for(lambda: in_flight(server) == 0)
        wait_for(lambda: http.num_fds() <= files)
        wait_for(lambda: any("took nothing for 0.6 s" in line for line in server.lines))


def test_requests_sent_ahead_end_with_their_client(server, key, records):
    """Pipelined: the second request must not hide that the client of the first has left."""
    data = json.dumps({"prompt": "l", "temperature": 0, "max_tokens": 4000}).encode()
    since_s = time.monotonic()
    with held(server.engine_pid), connect(server) as client:
        client.sendall((head(key, f"Content-Length: {len(data)}") + data) * 3)
        wait_for(lambda: in_flight(server) == 1)
    wait_for(lambda: in_flight(server) == 0)
    assert ask(server, key).status == 200
    assert in_flight(server) == 0

    def ended() -> list[RequestRecord]:
        return [record for record in read_jsonl(records).records if record.received_s >= since_s]

    wait_for(lambda: "abort" in {record.finish_reason for record in ended()})
    assert all(record.output_tokens < 4000 for record in ended())


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (lambda path: path.write_text("{"), "damaged"),
        (lambda path: path.chmod(0o644), "chmod 600"),
        (lambda path: path.unlink(), "netgain keys new"),
    ],
)
def test_a_key_file_that_cannot_be_used_ends_the_start_with_one_line(chain_model, tmp_path, capsys, damage, names):
    from netgain.cli.main import run

    path = tmp_path / "keys.json"
    new_key(path, "acme", KeyLimits())
    damage(path)
    assert run(["serve", str(chain_model.folder), "--port", "0", "--api-keys", str(path)]) == 2
    error = capsys.readouterr().err
    assert names in error
    assert len(error.splitlines()) == 1
