"""A server that says given bytes at given times over a real socket: the double that stands for every kind of LLM server."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Seen:
    """A request as it came in. `written_s` are the times at which the steps of its answer were written."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at_s: float
    written_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Script:
    """What to answer. `steps`: (seconds after the request came, bytes to write), each a chunk of the HTTP body of its own.

    `ending`: "end" closes the body properly, "cut" drops the connection in the middle of it, "hang" says nothing more, "leave"
    closes the body properly and then the connection, without having said so; "deaf" does it when the next request has come,
    after `last_bytes`. "silent" closes the connection in place of an answer.
    """

    steps: Sequence[tuple[float, bytes]] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    ending: str = "end"
    last_bytes: bytes = b""


def event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def chunk(content: str | None = None, *, usage: int | None = None, finish: str | None = None, **delta: object) -> bytes:
    """A chat chunk. `usage` is the running count of output tokens; other keywords are fields of the delta."""
    payload: dict[str, Any] = {
        "id": "x",
        "object": "chat.completion.chunk",
        "choices": [
            {"index": 0, "delta": delta | ({} if content is None else {"content": content}), "finish_reason": finish}
        ],
    }
    if usage is not None:
        payload["usage"] = {"prompt_tokens": 7, "completion_tokens": usage, "total_tokens": 7 + usage}
    return event(payload)


def final_usage(tokens: int, **fields: object) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}, **fields})


DONE = b"data: [DONE]\n\n"


@dataclass
class ScriptedServer:
    """`script` picks the answer to each request. `owner` is what /v1/models names as owner; None: it has no such list.
    `pages` are texts at other paths, such as /metrics."""

    script: Callable[[Seen], Script]
    owner: str | None = "somebody"
    pages: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    open_now: int = 0
    open_most: int = 0
    connections: int = 0
    url: str = ""

    async def __aenter__(self) -> "ScriptedServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._tasks: set[asyncio.Task[Any]] = set()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split()[1]
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if head[0].startswith("GET") and path != "/v1/models":
            page = self.pages[path]().encode() if path in self.pages else b"no such page"
            status = 200 if path in self.pages else 404
            writer.write(
                b"HTTP/1.1 %d X\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % (status, len(page)) + page
            )
            return True
        if path == "/v1/models":
            cards = {"data": [{"id": "m", "owned_by": self.owner}]}
            payload = json.dumps(cards if self.owner else {"error": {"message": "no such path"}}).encode()
            status = 200 if self.owner else 404
            writer.write(
                b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % (status, len(payload))
            )
            writer.write(payload)
            return True
        seen = Seen(path, headers, json.loads(body), time.monotonic())
        self.seen.append(seen)
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            return await self._play(self.script(seen), seen, reader, writer)
        finally:
            self.open_now -= 1

    async def _play(
        self, script: Script, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if script.ending == "silent":
            writer.close()
            await writer.wait_closed()
            return False
        started, before_s = False, 0.0
        for at_s, data in script.steps:
            # where a busy machine was late with a step, those behind it keep their distance, so that each is seen by itself
            due_s = seen.at_s + at_s if not seen.written_s else max(seen.at_s, seen.written_s[-1] - before_s) + at_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            before_s = at_s
            if not started:
                started = self._begin(script, writer)
            seen.written_s.append(time.monotonic())
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
        if not started:
            self._begin(script, writer)
        if script.ending == "end":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        if script.ending in ("leave", "deaf"):
            writer.write(b"0\r\n\r\n")
            if script.ending == "deaf":
                await reader.readuntil(b"\r\n\r\n")
                writer.write(script.last_bytes)
            await writer.drain()
            writer.close()  # an orderly end, unlike `abort`
            await writer.wait_closed()
            return False
        if script.ending == "hang":
            await asyncio.sleep(60.0)
        return False

    def _begin(self, script: Script, writer: asyncio.StreamWriter) -> bool:
        writer.write(
            f"HTTP/1.1 {script.status} X\r\nContent-Type: {script.content_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        return True
