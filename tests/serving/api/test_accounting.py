"""The time of every request is accounted for: its record tiles it, and agrees with what the client saw."""

import json
import socket
import time
from urllib.parse import urlsplit

import pytest

from netgain.ledger.export import read_jsonl
from netgain.ledger.stage import Stage
from tests.waiting import PATIENCE_S, wait_for

CLIENT_PAUSE_S = 0.5


@pytest.fixture(scope="module")
def records_file(tmp_path_factory):
    return tmp_path_factory.mktemp("records") / "records.jsonl"


@pytest.fixture(scope="module")
def server(start_server, server_options, records_file):
    """What the kernel holds for a client counts as accepted by it, so that has to be little here."""
    with start_server(*server_options, "--records", str(records_file), "--set", "send_buffer_bytes=4096") as started:
        yield started


def newest(records_file, since_s):
    """The last record of a request received since then, once it is written (after the answer's last byte)."""

    def found():
        return [record for record in read_jsonl(records_file).records if record.received_s >= since_s]

    wait_for(found, said="the request is not on record")
    return found()[-1]


def test_an_answers_stages_stand_in_the_order_of_their_list(server):
    answer = server.ask(False, "l", max_tokens=20, netgain={"record": True})
    for told in (answer.json["netgain"]["stages"], answer.json["netgain"]["ttft_stages"]):
        assert list(told) == [stage for stage in Stage if stage in told]


@pytest.mark.parametrize("stream", [False, True])
def test_stages_tile_the_request_and_agree_with_the_client(server, records_file, stream):
    server.ask(False, "s")
    for _ in range(20):  # a busy machine may hold up the client, or what comes before the server, but not every time
        started = time.monotonic()
        server.ask(False, "l", max_tokens=100, stream=stream)
        client_s = time.monotonic() - started
        record = newest(records_file, started)
        server_s = record.finished_s - record.received_s
        if client_s - server_s < 0.05 and record.finished_s < started + client_s + 0.05:
            break
    assert sum(record.stages.values()) == pytest.approx(server_s)
    assert record.stages.get(Stage.UNATTRIBUTED, 0.0) < 0.01 * server_s
    assert record.output_tokens == 100
    assert sum(record.ttft_stages.values()) == pytest.approx(record.first_token_s - record.received_s)
    assert started < record.received_s < record.first_token_s < record.finished_s
    assert record.finished_s < started + client_s + 0.05  # the client may be told before the server looks at its clock
    assert client_s - server_s < 0.05  # connecting, and a busy machine


def test_a_client_that_does_not_read_is_blamed_for_it(server, records_file):
    tokens = 200
    made = server.metric("netgain_output_tokens_total") + tokens
    data = json.dumps({"prompt": "l", "temperature": 0, "max_tokens": tokens, "stream": True}).encode()
    url = urlsplit(server.url)
    since_s = time.monotonic()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        client.settimeout(PATIENCE_S)
        client.connect((url.hostname, url.port))
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        # the engine finishes, the answer waits in the server
        wait_for(lambda: server.metric("netgain_output_tokens_total") >= made)
        time.sleep(CLIENT_PAUSE_S)
        received = b""
        while b"[DONE]" not in received:
            received = received[-64:] + client.recv(65536)
    record = newest(records_file, since_s)
    assert record.stages[Stage.CLIENT_BLOCKED] > CLIENT_PAUSE_S
    assert record.stages.get(Stage.UNATTRIBUTED, 0.0) < 0.01 * (record.finished_s - record.received_s)


def test_a_slowly_sent_body_is_the_clients_time(server, records_file):
    data = json.dumps({"prompt": "s", "temperature": 0}).encode()
    url = urlsplit(server.url)
    for _ in range(20):  # a busy machine may hold up either side, but not every time
        since_s = time.monotonic()
        with socket.create_connection((url.hostname, url.port), timeout=PATIENCE_S) as client:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data)
            client.sendall(head + data[:5])
            paused_s = time.monotonic()
            time.sleep(CLIENT_PAUSE_S)
            paused_s = time.monotonic() - paused_s
            client.sendall(data[5:])
            client.recv(65536)
        record = newest(records_file, since_s)
        if record.stages[Stage.CLIENT_BLOCKED] == pytest.approx(paused_s, abs=0.05):
            break
    assert record.stages[Stage.CLIENT_BLOCKED] == pytest.approx(paused_s, abs=0.05)
    assert record.ttft_stages[Stage.CLIENT_BLOCKED] == pytest.approx(paused_s, abs=0.05)


def test_a_request_that_waits_for_its_place_is_queued(server, records_file):
    busy = []
    url = urlsplit(server.url)
    data = json.dumps({"prompt": "l", "temperature": 0, "max_tokens": 400}).encode()
    for _ in range(2):
        client = socket.create_connection((url.hostname, url.port), timeout=PATIENCE_S)
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        busy.append(client)
    wait_for(lambda: server.metric("netgain_requests_running") == 2)
    started = time.monotonic()
    server.ask(False, "s")
    record = newest(records_file, started)
    assert record.output_tokens == 3
    assert record.stages[Stage.QUEUED] > 0.5 * (record.finished_s - record.received_s)
    for client in busy:
        client.close()


def test_the_record_in_the_answer_is_the_record_in_the_file(server, records_file):
    since_s = time.monotonic()
    answer = server.ask(True, "s", netgain={"record": True}).json
    record = newest(records_file, since_s)
    assert record.request_id == answer["id"] == answer["netgain"]["request_id"]
    assert record.received_s == answer["netgain"]["received_s"]
    assert record.finished_s >= answer["netgain"]["finished_s"]


def test_requests_that_clients_left_are_on_record(server, records_file):
    url = urlsplit(server.url)
    data = json.dumps({"prompt": "l", "temperature": 0, "max_tokens": 4000, "stream": True}).encode()
    since_s = time.monotonic()
    with socket.create_connection((url.hostname, url.port), timeout=PATIENCE_S) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        client.recv(4096)
    record = newest(records_file, since_s)
    assert record.finish_reason == "abort"
    assert 0 < record.output_tokens < 4000
    assert record.stages.get(Stage.UNATTRIBUTED, 0.0) < 0.05 * (record.finished_s - record.received_s)


def test_stage_seconds_reach_the_metrics(server):
    before = server.metric("netgain_requests_total")
    server.ask(False, "s")
    wait_for(lambda: server.metric("netgain_requests_total") >= before + 1)  # after the answer's last byte
    assert server.metric("netgain_requests_total") == before + 1
    assert server.metric("netgain_stage_seconds_total") > 0
    assert server.metric("netgain_ttft_seconds_count") >= 1


def test_step_cost_is_measured_when_idle(server):
    cost = server.send("/netgain/step-cost?budget_s=0.5&fresh=true")
    assert cost.status == 200, cost.body
    assert cost.json["points"]
    assert server.send("/netgain/step-cost").body == cost.body  # the curve in use
    assert server.ask(False, "s").status == 200
