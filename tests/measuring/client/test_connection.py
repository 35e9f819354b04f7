"""Connections of the timing client: what is stamped when, what goes out, and what cannot."""

import asyncio
import time

import pytest

from netgain.errors import UsageError
from netgain.measuring.client.connection import Connection, Connections
from netgain.measuring.client.options import Options
from netgain.measuring.client.record import ErrorKind
from netgain.measuring.client.run import run
from netgain.measuring.workload.arrivals import Closed
from tests.measuring.scripted_server import DONE, chunk
from tests.measuring.timing import LOOSE, items
from tests.waiting import PATIENCE_S

STREAMS = 40
READING_S = 0.005


class Slow:
    """Takes its time to read."""

    def __init__(self) -> None:
        self.at_s: float | None = None

    def received(self, at_s: float, data: bytes) -> None:
        self.at_s = self.at_s or at_s
        time.sleep(READING_S)

    def closed(self, at_s: float, error: Exception | None) -> None: ...

    def failed(self, error: Exception) -> None:
        raise error


async def test_a_stream_is_stamped_when_its_bytes_are_there_not_after_the_others_were_read() -> None:
    """Reading all that came at one moment takes 0.2 s here; every stamp is of that moment."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Connections(f"http://127.0.0.1:{port}", {}, 0.0) as connections:
        readers = [Slow() for _ in range(STREAMS)]
        for reader in readers:
            (await connections.open()).send(b"x", reader)
        while len(writers) < STREAMS:
            await asyncio.sleep(0.01)
        for writer in writers:
            writer.write(b"y")
        written_s = time.monotonic()
        while any(reader.at_s is None for reader in readers):
            await asyncio.sleep(0.001)
        took_s = time.monotonic() - written_s
    server.close()
    late = sorted((reader.at_s or 0.0) - written_s for reader in readers)
    assert took_s >= STREAMS * READING_S
    assert late[-1] - late[0] < took_s / 4


async def raw(answer: bytes, **options: object):  # type: ignore[no-untyped-def]
    """The record of one request that is answered by these bytes, and what was sent."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        seen.append(head + await reader.readexactly(int(length[15:])))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/prefix"
    asked = Options(budget=LOOSE, server_record=False, timeout_s=5.0, **options)  # type: ignore[arg-type]
    done = await run(url, "m", items(), Closed(1), asked)
    server.close()
    return done.records[0], seen[0]


STREAM = chunk("a", finish="stop") + DONE
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


async def test_an_answer_of_http_1_0_that_ends_with_its_connection_is_read() -> None:
    record, sent = await raw(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + STREAM)
    assert (record.error, record.text) == (None, "a")
    assert sent.startswith(b"POST /prefix/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_a_packed_answer_is_unpacked() -> None:
    import gzip

    record, _ = await raw(OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(STREAM))
    assert (record.error, record.text) == (None, "a")


async def test_an_answer_that_sends_on_names_the_place() -> None:
    record, _ = await raw(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: https://there/v1\r\nContent-Length: 0\r\n\r\n")
    assert record.error_kind is ErrorKind.MALFORMED
    assert "https://there/v1; give that URL" in (record.error or "")


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", ErrorKind.MALFORMED),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20, ErrorKind.MALFORMED),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ErrorKind.MALFORMED),
        (OK + b"Content-Encoding: br\r\n\r\n\x0b", ErrorKind.MALFORMED),
        (OK + b"Content-Encoding: gzip\r\n\r\nnothing of the kind", ErrorKind.MALFORMED),
        (OK + b'\r\ndata: {"choices": ' + DEEP + b"\n\n", ErrorKind.MALFORMED),
        (OK + b'\r\ndata: {"unknown": ' + DEEP + b"\n\n", ErrorKind.MALFORMED),
        (OK + b'\r\ndata: {"choices": [{"text": "\xff"}]}\n\n', ErrorKind.MALFORMED),
        (OK + b'\r\ndata: {"error": ' + DEEP + b"}\n\n", ErrorKind.MALFORMED),
        (OK + b'\r\ndata: {"error": {"code": 123456789012345678901234567890}}\n\n', ErrorKind.SERVER),
        (b"HTTP/1.1 500 X\r\n\r\n" + DEEP, ErrorKind.HTTP),
        (b'HTTP/1.1 500 X\r\n\r\n{"error": {"code": 123456789012345678901234567890}}', ErrorKind.HTTP),
        (b"HTTP/1.1 429 X\r\nContent-Length: 10\r\n\r\nslow", ErrorKind.CUT),
    ],
)
async def test_whatever_a_server_sends_costs_its_request_alone(answer: bytes, kind: ErrorKind) -> None:
    record, _ = await raw(answer)
    assert record.error_kind is kind, record.error
    assert "\n" not in (record.error or "")


@pytest.mark.parametrize("tokens", [-1, 10**30])
async def test_a_count_that_no_answer_can_have_is_unknown(tokens: int) -> None:
    """A server that says -1 for "unknown", or anything else that fits no table."""
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": %d, "completion_tokens": %d}}\n\n' % (tokens, tokens)
    record, _ = await raw(OK + b"\r\n" + chunk("a", finish="stop") + usage + DONE)
    assert record.error is None
    assert (record.prompt_tokens, record.output_tokens, record.tokens_source) == (None, 1, "chunks")


@pytest.mark.parametrize(
    "headers", [{"X-Key": "s3cret\r\nX: y"}, {"X Key": "s3cret"}, {"Content-Length": "3"}, {"X-Key": "s3cret\ud800"}]
)
async def test_a_header_that_http_cannot_carry_is_refused_and_its_value_not_shown(headers: dict[str, str]) -> None:
    with pytest.raises(UsageError) as refused:
        Connections("http://127.0.0.1:1", headers, 0.0)
    assert "s3cret" not in str(refused.value)


async def test_a_users_header_replaces_the_clients_own() -> None:
    _, sent = await raw(OK + b"\r\n" + STREAM, headers={"user-agent": "mine", "Authorization": "Bearer k"})
    assert sent.lower().count(b"user-agent:") == 1
    assert b"user-agent: mine\r\n" in sent
    assert b"Authorization: Bearer k\r\n" in sent


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300, 0.0, -1.0])
def test_a_time_limit_that_no_timer_knows_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="timeout_s"):
        Options(timeout_s=seconds)


def test_an_idle_connection_that_speaks_unasked_is_not_used_again() -> None:
    async def check() -> None:
        looked = asyncio.Event()

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await looked.wait()
            writer.write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}, 5.0) as connections:
            connection: Connection = await connections.open()
            connections.give_back(connection)
            assert connections.kept() is connection
            connections.give_back(connection)
            looked.set()
            async with asyncio.timeout(PATIENCE_S):  # until what was said has arrived
                while (again := connections.kept()) is not None:
                    connections.give_back(again)
                    await asyncio.sleep(0.01)
        server.close()

    asyncio.run(check())


@pytest.mark.parametrize(
    "body", [b'{"error": {"message": "Traceback:\\n  line\\n  %b"}}' % (b"x" * 9000), b"a\nb\r\n" * 900]
)
async def test_what_a_server_says_of_its_failure_is_one_short_line(body: bytes) -> None:
    record, _ = await raw(b"HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    assert record.error is not None
    assert record.error.startswith("status 500: ")
    assert "\n" not in record.error
    assert len(record.error) < 400


async def test_a_server_that_hangs_up_at_once_is_a_failure_and_no_wait() -> None:
    """The connection is gone before the request is written."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    began_s = time.monotonic()
    asked = Options(budget=LOOSE, server_record=False, timeout_s=30.0)
    done = await run(url, "m", items(20), Closed(4), asked)
    server.close()
    assert {record.error_kind for record in done.records} == {ErrorKind.CUT}
    assert time.monotonic() - began_s < 25.0


async def test_a_connection_gone_before_anything_is_written_is_told() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    class Told:
        closed_s: float | None = None

        def received(self, at_s: float, data: bytes) -> None: ...

        def closed(self, at_s: float, error: Exception | None) -> None:
            self.closed_s = at_s

        def failed(self, error: Exception) -> None: ...

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}, 0.0) as connections:
        connection = await connections.open()
        while not connection.gone:
            await asyncio.sleep(0.01)
        told = Told()
        connection.send(b"x", told)
        async with asyncio.timeout(PATIENCE_S):
            while told.closed_s is None:
                await asyncio.sleep(0.001)
    server.close()
