"""Clients that do not read hold up nobody: neither the engine nor the streams beside theirs."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from netgain.ledger.export import read_jsonl
from netgain.ledger.stage import Stage
from tests.waiting import PATIENCE_S, wait_for

STALLED, READING, TOKENS = 16, 16, 150
SETTINGS = (
    "engine.model.kernels=torch",
    "engine.model.threads=1",
    f"engine.scheduler.max_running={STALLED + READING}",
    f"engine.cache.kv_tokens={(STALLED + READING) * 256}",
    "engine.step_cost.refresh=never",
    "send_buffer_bytes=4096",  # what the kernel holds for a client counts as read by it
)


@pytest.fixture
def stalled(start_server, chain_model, tmp_path) -> Iterator[tuple]:
    """A server, its records, and sockets that have asked for a stream and take no byte of it."""
    records = tmp_path / "records.jsonl"
    options = [item for setting in SETTINGS for item in ("--set", setting)]
    with start_server(str(chain_model.folder), *options, "--records", str(records)) as server:
        at = urlsplit(server.url)
        data = json.dumps(
            {"prompt": "l", "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
        ).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data)
        clients = []
        for _ in range(STALLED):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(PATIENCE_S)
            client.connect((at.hostname, at.port))
            client.sendall(head + data)
            clients.append(client)
        yield server, records, clients
        for client in clients:
            client.close()


def wait_until_all_is_free(server) -> None:
    wait_for(
        lambda: server.metric("netgain_kv_blocks_free") == server.metric("netgain_kv_blocks"),
        said="KV of requests that are over is still held",
    )


def text_of(events: bytes) -> str:
    chunks = [line[6:] for line in events.splitlines() if line.startswith(b"data: {")]
    return "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)


def test_clients_that_do_not_read_hold_up_neither_the_engine_nor_other_streams(stalled):
    server, records, clients = stalled
    with ThreadPoolExecutor(READING) as pool:
        asked = [
            pool.submit(server.ask, False, "l", max_tokens=TOKENS, ignore_eos=True, stream=True) for _ in range(READING)
        ]
        texts = {text_of(answer.result(PATIENCE_S).body) for answer in asked}
    (text,) = texts
    # all is generated and its KV free again, before half of the clients have read a byte
    wait_for(
        lambda: server.metric("netgain_output_tokens_total") >= (STALLED + READING) * TOKENS,
        said="the engine waits for clients",
    )
    wait_until_all_is_free(server)
    assert server.metric("netgain_requests_total") == READING  # those of the others are not over
    for client in clients:
        received = b""
        while b"[DONE]" not in received:
            received += client.recv(65536)
        body = b"".join(
            part for part in received.partition(b"\r\n\r\n")[2].split(b"\r\n") if part.startswith(b"data: ")
        )
        assert text_of(body) == text
    wait_for(lambda: len(read_jsonl(records).records) == STALLED + READING)
    written = read_jsonl(records).records
    blocked_s = sorted(record.stages.get(Stage.CLIENT_BLOCKED, 0.0) for record in written)
    assert blocked_s[STALLED - 1] < 0.5 * blocked_s[STALLED]  # of who read and of who did not


def test_clients_that_leave_without_having_read_free_their_requests(stalled):
    server, _, clients = stalled
    wait_for(lambda: server.metric("netgain_output_tokens_total") > 0)
    for client in clients:
        client.close()
    wait_for(
        lambda: server.metric("netgain_requests_total") == STALLED, said="requests of clients that left are still held"
    )
    wait_until_all_is_free(server)
