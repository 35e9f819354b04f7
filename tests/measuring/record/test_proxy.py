"""The recording proxy between real sockets: what goes through is what was sent, and what is written is what happened."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from netgain.measuring.record.entry import Closing, Entry, Recording
from netgain.measuring.record.hashing import Hasher, canonical
from netgain.measuring.record.journal import Journal, read_recording
from netgain.measuring.record.proxy import Proxy
from netgain.measuring.record.recorder import Recorder
from tests.measuring.scripted_server import DONE, Script, ScriptedServer, Seen, chunk, event, final_usage
from tests.waiting import PATIENCE_S

CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "a secret question"}]}


class Recorded:
    """A proxy at `url` in front of a server, and what it wrote once `entries` is called."""

    def __init__(self, url: str, path: Path, recorder: Recorder) -> None:
        self.url = url
        self.path = path
        self._recorder = recorder

    def entries(self) -> list[Entry]:
        self._recorder.close()
        return [line for line in read_recording(self.path) if isinstance(line, Entry)]


@contextlib.asynccontextmanager
async def _recording(
    upstream: str, path: Path, *, ask_usage: bool = False, with_text: bool = False, grace_s: float = 1.0
) -> AsyncIterator[Recorded]:
    hasher = Hasher()
    journal = Journal(
        path, "proxy", block_unit="bytes", block_size=hasher.block_bytes, upstream=upstream, with_text=with_text
    )
    recorder = Recorder(journal, hasher, with_text=with_text)
    runner = Proxy(upstream, recorder.take, ask_usage=ask_usage).runner(grace_s)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield Recorded(f"http://127.0.0.1:{runner.addresses[0][1]}", path, recorder)
    finally:
        await runner.cleanup()


async def _raw(url: str, data: bytes) -> bytes:
    """Everything that a server answers to these bytes, until it closes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    got = await reader.read()
    writer.close()
    return got


def _echo() -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        told = {
            "method": request.method,
            "path": request.raw_path,
            "headers": list(map(list, request.headers.items())),
            "body": (await request.read()).decode("latin-1"),
        }
        headers = {"X-One": "1", "Connection": "keep-alive, X-Hop", "X-Hop": "h", "Server": "up"}
        return web.Response(body=json.dumps(told).encode(), status=207, reason="Mixed", headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


@contextlib.asynccontextmanager
async def _serving(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _collect(response: aiohttp.ClientResponse, got: list[bytes]) -> None:
    async for piece in response.content.iter_any():
        got.append(piece)


def _script(*steps: tuple[float, bytes], **fields: Any) -> Callable[[Seen], Script]:
    return lambda seen: Script(steps=steps, **fields)


ANSWER = ((0.0, chunk("Hello")), (0.1, chunk(" world")), (0.1, chunk("", finish="stop")), (0.1, DONE))


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_every_method_path_header_and_body_passes_unchanged(method: str, tmp_path: Path) -> None:
    path = "/v1/a%2Fb//c/../d?x=%20&y=1&y=2"
    async with _serving(_echo()) as url, _recording(url, tmp_path / "r.jsonl") as proxy:
        head = f"{method} {path} HTTP/1.1\r\nHost: example.org\r\nX-Twice: a\r\nX-Twice: b\r\nConnection: close, X-Gone\r\n"
        sent = f"{head}X-Gone: 1\r\nTE: trailers\r\nContent-Length: 5\r\n\r\nh\xe9llo".encode("latin-1")
        answer = await _raw(proxy.url, sent)
    top, _, body = answer.partition(b"\r\n\r\n")
    told = json.loads(body)
    names = [name.lower() for name, _ in told["headers"]]
    assert top.startswith(b"HTTP/1.1 207 Mixed\r\n")
    assert (told["method"], told["path"], told["body"]) == (method, path, "h\xe9llo")
    assert [value for name, value in told["headers"] if name == "X-Twice"] == ["a", "b"]
    assert not {"x-gone", "te", "connection", "user-agent", "accept-encoding"} & set(names)
    assert b"X-One: 1" in top
    assert b"Server: up" in top
    assert b"X-Hop" not in top


async def test_a_stream_arrives_chunk_by_chunk_and_byte_by_byte(tmp_path: Path) -> None:
    """The server writes a chunk only once the client has the one before it: a proxy that held one back would wait for ever."""
    chunks = [*(b"data: " + json.dumps({"n": n}).encode() + b"\n\n" for n in range(6)), DONE]
    arrived = asyncio.Semaphore(0)

    async def one_by_one(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for data in chunks:
            await answer.write(data)
            await arrived.acquire()
        return answer

    app = web.Application()
    app.router.add_post("/v1/chat/completions", one_by_one)
    async with _serving(app) as url, _recording(url, tmp_path / "r") as proxy, aiohttp.ClientSession() as session:
        got: list[bytes] = []
        async with (
            asyncio.timeout(PATIENCE_S),
            session.post(proxy.url + "/v1/chat/completions", json=CHAT) as response,
        ):
            async for piece in response.content.iter_any():
                got.append(piece)
                arrived.release()
    assert got == chunks


async def test_the_head_of_a_stream_does_not_wait_for_its_first_chunk(tmp_path: Path) -> None:
    """The server writes its first chunk only once the client has the head."""
    has_head = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await has_head.wait()
        await answer.write(DONE)
        return answer

    app = web.Application()
    app.router.add_post("/v1/x", slow)
    async with _serving(app) as url, _recording(url, tmp_path / "r") as proxy, aiohttp.ClientSession() as session:
        for _ in range(2):
            has_head.clear()
            async with asyncio.timeout(PATIENCE_S), session.post(proxy.url + "/v1/x", data=b"{}") as response:
                has_head.set()
                assert await response.read() == DONE


async def test_an_entry_says_what_happened_and_holds_no_text(tmp_path: Path) -> None:
    script = _script(*ANSWER[:3], (0.1, final_usage(9)), (0.1, DONE))
    headers = {"Authorization": "Bearer sk-private"}
    body = {**CHAT, "max_tokens": 50, "temperature": 0.5, "seed": 4, "user": "alice", "tools": [{"type": "function"}]}
    async with ScriptedServer(script) as server, _recording(server.url, tmp_path / "r") as proxy:
        async with aiohttp.ClientSession(headers=headers) as session:
            for _ in range(2):
                async with session.post(proxy.url + "/v1/chat/completions?key=private", json=body) as response:
                    await response.read()
        first, second = proxy.entries()
    assert (first.endpoint, first.model, first.status) == ("/v1/chat/completions", "m", 200)
    assert (first.asked.max_tokens, first.asked.temperature, first.asked.stream, first.asked.tools) == (
        50,
        0.5,
        True,
        1,
    )
    assert first.asked.seeded is True
    assert (first.prompt_tokens, first.output_tokens, first.tokens_source) == (7, 9, "usage")
    assert first.finish_reasons == ("stop",)
    assert first.first_token_after_s is not None
    assert first.ended_after_s is not None
    assert first.first_token_after_s <= first.ended_after_s < 2.0
    assert abs((first.arrived_unix_s or 0) - time.time()) < 30
    assert first.tenant == second.tenant is not None
    assert first.session == second.session is not None
    text = (tmp_path / "r").read_text()
    assert not [word for word in ("secret", "private", "alice", "Hello", "world") if word in text]


async def test_counts_are_unknown_where_the_server_gave_none(tmp_path: Path) -> None:
    async with ScriptedServer(_script(*ANSWER)) as server, _recording(server.url, tmp_path / "r") as proxy:
        async with aiohttp.ClientSession() as session, session.post(proxy.url + "/v1/chat/completions", json=CHAT) as r:
            await r.read()
        sent = server.seen[0].body
        (entry,) = proxy.entries()
    assert sent == CHAT, "nothing is added to a request by default"
    assert (entry.prompt_tokens, entry.output_tokens, entry.tokens_source) == (None, None, None)


async def test_usage_that_was_asked_for_is_kept_from_a_client_that_did_not_ask(tmp_path: Path) -> None:
    script = _script(*ANSWER[:3], (0.1, final_usage(9)), (0.1, DONE))
    async with ScriptedServer(script) as server, _recording(server.url, tmp_path / "r", ask_usage=True) as proxy:
        async with aiohttp.ClientSession() as session:
            async with session.post(proxy.url + "/v1/chat/completions", json=CHAT) as response:
                hidden = await response.read()
            asking = {**CHAT, "stream_options": {"include_usage": True}}
            async with session.post(proxy.url + "/v1/chat/completions", json=asking) as response:
                shown = await response.read()
        assert [seen.body["stream_options"] for seen in server.seen] == [{"include_usage": True}] * 2
        entries = proxy.entries()
    assert hidden == b"".join(data for _, data in ANSWER)
    assert b'"completion_tokens"' in shown
    assert [entry.output_tokens for entry in entries] == [9, 9]


@pytest.mark.parametrize("after_first_chunk", [True, False])
async def test_a_client_that_hangs_up_ends_its_request_upstream(after_first_chunk: bool, tmp_path: Path) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            if after_first_chunk:
                await answer.prepare(request)
                await answer.write(chunk("a"))
            began.set()
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.set()
            raise
        return answer

    app = web.Application()
    app.router.add_post("/v1/chat/completions", endless)
    async with _serving(app) as url, _recording(url, tmp_path / "r") as proxy:
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(session.post(proxy.url + "/v1/chat/completions", json=CHAT))
            await asyncio.wait_for(began.wait(), PATIENCE_S)
            if after_first_chunk:
                (await asking).close()
            else:
                asking.cancel()
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
        (entry,) = proxy.entries()
    assert entry.error is not None
    assert "client left" in entry.error


async def test_an_upstream_that_hangs_up_in_a_stream_hangs_up_on_the_client(tmp_path: Path) -> None:
    script = _script((0.0, chunk("a")), (0.05, chunk("b")), ending="cut")
    async with ScriptedServer(script) as server, _recording(server.url, tmp_path / "r") as proxy:
        got: list[bytes] = []
        async with aiohttp.ClientSession() as session, session.post(proxy.url + "/v1/chat/completions", json=CHAT) as r:
            with pytest.raises(aiohttp.ClientPayloadError):
                await _collect(r, got)
        (entry,) = proxy.entries()
    assert b"".join(got) == chunk("a") + chunk("b")
    assert entry.error is not None
    assert entry.chunks == 2


async def test_errors_of_the_upstream_pass_as_they_are(tmp_path: Path) -> None:
    body = b'{"error": {"message": "you asked: private question", "type": "rate_limit", "code": 7}}'
    script = _script((0.0, body), status=429, content_type="application/json")
    async with ScriptedServer(script) as server, _recording(server.url, tmp_path / "r") as proxy:
        async with aiohttp.ClientSession() as session, session.post(proxy.url + "/v1/completions", json={}) as response:
            assert (response.status, await response.read()) == (429, body)
        (entry,) = proxy.entries()
    assert (entry.status, entry.error) == (429, "rate_limit, 7")
    assert "private" not in (tmp_path / "r").read_text(), "messages of errors may quote the request"


async def test_an_upstream_that_is_not_there_is_502_with_its_name(tmp_path: Path, free_port: int) -> None:
    async with _recording(f"http://127.0.0.1:{free_port}", tmp_path / "r") as proxy:
        async with aiohttp.ClientSession() as session, session.get(proxy.url + "/v1/models") as response:
            assert response.status == 502
            assert f"127.0.0.1:{free_port} cannot be reached" in (await response.json())["error"]["message"]
        (entry,) = proxy.entries()
    assert entry.status is None
    assert entry.error is not None


@pytest.mark.parametrize(
    ("data", "error", "unread"),
    [
        (event({"error": {"message": "private", "type": "overloaded"}}), "overloaded", None),
        (event({"error": "private"}), "an error inside the stream", None),
        (b"data: private words\n\n", None, "no OpenAI chunk"),
    ],
)
async def test_faults_inside_a_stream_are_told_without_its_text(
    data: bytes, error: str | None, unread: str | None, tmp_path: Path
) -> None:
    async with ScriptedServer(_script((0.0, data))) as server, _recording(server.url, tmp_path / "r") as proxy:
        async with aiohttp.ClientSession() as session, session.post(proxy.url + "/v1/chat/completions", json=CHAT) as r:
            assert await r.read() == data
        (entry,) = proxy.entries()
    assert entry.error == error
    assert (unread or "") in (entry.unread or "")
    assert "private" not in (tmp_path / "r").read_text()


async def test_packed_answers_pass_packed_and_are_read(tmp_path: Path) -> None:
    async def packed(request: web.Request) -> web.Response:
        answer = web.json_response({"choices": [{"finish_reason": "length"}], "usage": {"completion_tokens": 3}})
        answer.enable_compression(web.ContentCoding.gzip)
        return answer

    app = web.Application()
    app.router.add_post("/v1/completions", packed)
    async with _serving(app) as url, _recording(url, tmp_path / "r") as proxy:
        asking = aiohttp.ClientSession(auto_decompress=False, headers={"Accept-Encoding": "gzip"})
        async with asking as session, session.post(proxy.url + "/v1/completions", json={"prompt": "x"}) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert (await response.read()).startswith(b"\x1f\x8b")
        (entry,) = proxy.entries()
    assert (entry.output_tokens, entry.finish_reasons) == (3, ("length",))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1]", b'{"messages": 5, "n": "x", "max_tokens": 1e400}', b"\xff\xfe", b'{"prompt": [[1], [2]]}'],
)
async def test_whatever_clients_send_is_recorded(body: bytes, tmp_path: Path) -> None:
    async with _serving(_echo()) as url, _recording(url, tmp_path / "r") as proxy:
        async with (
            aiohttp.ClientSession() as session,
            session.post(proxy.url + "/v1/completions", data=body) as response,
        ):
            assert response.status == 207
        (entry,) = proxy.entries()
    assert entry.status == 207


async def test_texts_are_kept_on_demand_in_a_file_of_its_owner(tmp_path: Path) -> None:
    async with (
        ScriptedServer(_script(*ANSWER)) as server,
        _recording(server.url, tmp_path / "r", with_text=True) as proxy,
    ):
        async with aiohttp.ClientSession() as session, session.post(proxy.url + "/v1/chat/completions", json=CHAT) as r:
            await r.read()
        (entry,) = proxy.entries()
    assert entry.request == CHAT
    assert entry.answer == "Hello world"
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o600


async def test_a_recording_says_what_it_is_and_how_it_ended(tmp_path: Path) -> None:
    async with _serving(_echo()) as url, _recording(url, tmp_path / "r") as proxy:
        async with aiohttp.ClientSession() as session, session.get(proxy.url + "/v1/models") as response:
            await response.read()
        proxy.entries()
    first, *_, last = read_recording(tmp_path / "r")
    assert isinstance(first, Recording)
    assert (first.upstream, first.block_unit, first.block_size) == (url, "bytes", 256)
    assert isinstance(last, Closing)
    assert (last.written, last.lost) == (1, 0)


async def test_a_client_that_takes_it_for_a_forward_proxy_is_served(tmp_path: Path) -> None:
    async with _serving(_echo()) as url, _recording(url, tmp_path / "r") as proxy:
        head = b"GET http://example.org/v1/a?b=1 HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n"
        answer = await _raw(proxy.url, head)
        (entry,) = proxy.entries()
    assert answer.startswith(b"HTTP/1.1 207")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["path"] == "/v1/a?b=1"
    assert entry.endpoint == "/v1/a"


async def test_what_is_no_http_is_refused_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with _serving(_echo()) as url, _recording(url, tmp_path / "r") as proxy:
        assert b" 400 " in await _raw(
            proxy.url, b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
        )
    assert capfd.readouterr().err.count("\n") <= 1


async def test_an_upstream_that_speaks_no_http_is_told_without_the_clients_key(tmp_path: Path) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HELLO\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(nonsense, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with _recording(url, tmp_path / "r") as proxy:
            await _raw(proxy.url, b"GET /x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk-private\r\n\r\n")
            (entry,) = proxy.entries()
    assert "broke the connection" in (entry.error or "")
    assert "sk-private" not in (tmp_path / "r").read_text()


async def test_headers_that_are_no_text_pass_and_are_recorded(tmp_path: Path) -> None:
    async with _serving(_echo()) as url, _recording(url, tmp_path / "r") as proxy:
        head = b"GET /x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \xff\r\nX-Bin: \xe9\r\nConnection: close\r\n\r\n"
        assert (await _raw(proxy.url, head)).startswith(b"HTTP/1.1 207")
        (entry,) = proxy.entries()
    assert entry.tenant is not None


RESPONSE = {
    "object": "response",
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "private"}]}],
    "usage": {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
}
MESSAGE = {
    "type": "message",
    "content": [{"type": "text", "text": "private"}],
    "stop_reason": "max_tokens",
    "usage": {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 4},
}


def _named(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\n".encode() + event({"type": kind, **fields})


@pytest.mark.parametrize(
    ("endpoint", "whole", "stream"),
    [
        (
            "/v1/responses",
            RESPONSE,
            (
                _named("response.created", response={"status": "in_progress"}),
                _named("response.output_text.delta", delta="private"),
                _named("response.incomplete", response=RESPONSE),
            ),
        ),
        (
            "/v1/messages",
            MESSAGE,
            (
                _named("message_start", message={"usage": MESSAGE["usage"] | {"output_tokens": 1}}),
                _named("content_block_delta", index=0, delta={"type": "text_delta", "text": "private"}),
                _named("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 2}),
                _named("message_stop"),
            ),
        ),
    ],
)
async def test_answers_of_the_responses_and_messages_apis_are_read(
    endpoint: str, whole: dict[str, Any], stream: tuple[bytes, ...], tmp_path: Path
) -> None:
    for steps, kind in (((json.dumps(whole).encode(),), "application/json"), (stream, "text/event-stream")):
        script = _script(*((0.0, step) for step in steps), content_type=kind)
        path = tmp_path / kind.replace("/", "-")
        async with ScriptedServer(script) as server, _recording(server.url, path) as proxy:
            async with aiohttp.ClientSession() as session, session.post(proxy.url + endpoint, json={"input": "x"}) as r:
                await r.read()
            (entry,) = proxy.entries()
        assert (entry.prompt_tokens, entry.cached_tokens, entry.output_tokens) == (9, 4, 2)
        assert (entry.finish_reasons, entry.error, entry.unread) == (("length",), None, None)
        assert (entry.first_token_after_s is not None) == (kind == "text/event-stream")
        assert "private" not in path.read_text()


@pytest.mark.parametrize("name", ["system", "instructions"])
def test_instructions_beside_the_messages_are_part_of_the_prompt(name: str) -> None:
    hasher = Hasher()
    said = {"messages": [{"role": "user", "content": "q" * 600}]}
    one, two = (canonical(said | {name: text * 300}) for text in ("a", "b"))
    assert one is not None
    assert two is not None
    assert len(one) > 900
    assert not set(hasher.blocks(one)) & set(hasher.blocks(two))
