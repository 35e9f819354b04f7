"""One client connection: uvicorn's HTTP/1.1 protocol with bounds on what a client may hold and for how long."""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from netgain.serving.api.errors import ApiError
from netgain.serving.runtime.config import ServerSettings

logger = logging.getLogger("netgain.api")

_LINGER_S = 2.0  # after an answer that came before the request was complete, the client may go on sending for this long
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_PASSED_OVER = b"\r\nignored:"  # of the same length
_PIPELINED = 8  # requests sent ahead of their answers
_AT_ONCE = "netgain.body_at_once"


def body_at_once(scope: Scope) -> Callable[[bytes], bool] | None:
    """Sends a part of an answer's body without waiting, or says False, so that a token of a stream need not wake the task that
    answers. None: another server than this one called the application."""
    return cast("Callable[[bytes], bool] | None", scope.get(_AT_ONCE))


class Connection(HttpToolsProtocol):
    """Waits for the socket after every write, however short, so that time in which a client does not read is seen.

    A client is disconnected when it does not send a head in time, does not take what it is sent in time, or sends a head
    that is too large; its running requests then end as for any client that hangs up.
    """

    settings: ServerSettings  # set by `bounded_by`

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._head_bytes: int | None = 0  # come since the head began that is being read; None: none is
        self._header_bytes = 0  # of its URL and fields
        self._request_complete = True
        self._closes = False  # once the request has come to its end: its answer asked for that
        self._cycles: list[RequestResponseCycle] = []
        if len(self.connections) > self.settings.max_connections:
            self._refuse(
                ApiError(
                    503,
                    f"{self.settings.max_connections} connections are open, the limit of this server",
                    code="too_many_connections",
                )
            )
            return
        self._start("head", self.settings.head_timeout_s, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        for name in tuple(self._timers):
            self._stop(name)
        for cycle in self._cycles:  # with pipelining uvicorn tells only the newest
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._cycles = []
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            data = _without_upgrade(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > self.settings.max_head_bytes:
            self._refuse_head()

    def on_message_begin(self) -> None:
        self._request_complete = False
        self._head_bytes = self._head_bytes or 0
        self._header_bytes = 0
        self._start("head", self.settings.head_timeout_s, self._close)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._header_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._header_bytes > self.settings.max_head_bytes:
            raise _HeadTooLarge  # the parser stops, and send_400_response says why
        self._head_bytes = None
        self._stop("head")
        super().on_headers_complete()
        side = self.cycle.transport = _AnswerSide(self, self.cycle)
        self.cycle.scope[_AT_ONCE] = side.body_at_once
        self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
        self._cycles.append(self.cycle)
        if len(self.pipeline) > _PIPELINED:
            self._abort("it sent too many requests ahead of their answers")
        elif self.pipeline:
            self.flow.resume_reading()  # else nobody would see the client leave

    def on_message_complete(self) -> None:
        self._request_complete = True
        self._head_bytes = 0
        self._stop("linger")
        super().on_message_complete()
        if self._closes:
            self._close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._request_complete:
            self._start("linger", _LINGER_S, self._close)

    def close_behind(self, cycle: RequestResponseCycle) -> None:
        """The answer of `cycle` is complete and the last one: close, but not while its request is still coming. The kernel
        would reset the connection over the bytes that nobody read, and the client would never see the answer."""
        if cycle is self.cycle and not self._request_complete:
            self._closes = True
            self._start("linger", _LINGER_S, self._close)
        else:
            self._close()

    def pause_writing(self) -> None:
        self._start(
            "write",
            self.settings.write_timeout_s,
            lambda: self._abort(f"it took nothing for {self.settings.write_timeout_s:g} s"),
        )
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop("write")
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or too much of it; said in the same shape as every other failure."""
        if self._header_bytes > self.settings.max_head_bytes:
            self._refuse_head()
        elif any(self._owed(cycle) for cycle in self._cycles):
            self._abort("it sent what is no HTTP in the middle of an answer")
        else:
            self._refuse(ApiError(400, "this is no HTTP/1.1 request", code="invalid_http"))

    def _owed(self, cycle: RequestResponseCycle) -> bool:
        """Whether an answer is due or under way that another one would be taken for."""
        return not cycle.response_complete and (cycle.response_started or not cycle.more_body)

    def _refuse_head(self) -> None:
        limit = self.settings.max_head_bytes
        self._refuse(
            ApiError(
                431,
                f"the head of the request is larger than {limit} bytes, the limit of this server",
                code="head_too_large",
            )
        )

    def _refuse(self, error: ApiError) -> None:
        """Answer outside the application, and close."""
        headers = {
            **error.headers,
            "content-type": "application/json",
            "content-length": str(len(error.body)),
            "connection": "close",
        }
        head = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items())
        self.transport.write(STATUS_LINE[error.status] + head + b"\r\n" + error.body)
        self._close()

    def _close(self) -> None:
        """Close once what was written has left."""
        if not self.transport.is_closing():
            self.transport.close()

    def _abort(self, why: str) -> None:
        logger.warning("a client was disconnected: %s", why)
        self.transport.abort()

    def _start(self, name: str, seconds: float, then: Callable[[], None]) -> None:
        self._stop(name)
        self._timers[name] = self.loop.call_later(seconds, then)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


class _AnswerSide:
    """The transport as the answer to a request uses it."""

    def __init__(self, connection: Connection, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle
        self.write = connection.transport.write

    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()

    def close(self) -> None:
        self._connection.close_behind(self._cycle)

    def body_at_once(self, data: bytes) -> bool:
        """Send a part of a chunked body whose head was sent, as uvicorn does; False where its `send` has to do that: it may
        have to wait for the socket, or the client is gone."""
        cycle = self._cycle
        if self._connection.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
            return False
        self.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


def _without_upgrade(data: bytes) -> bytes:
    """Nothing is offered to upgrade to, so the request is answered as it is. The parser would take its body for the other
    protocol's: Java's client asks for HTTP/2 like that with every first POST."""
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    found = _UPGRADE.search(head)
    return data if found is None else b"".join((data[: found.start()], _PASSED_OVER, data[found.end() :]))


class _HeadTooLarge(Exception):
    """Ends the parsing of a request."""


def bounded_by(settings: ServerSettings) -> type[Connection]:
    """The protocol class with these bounds, as uvicorn wants it: it makes the instances itself."""
    return type("BoundedConnection", (Connection,), {"settings": settings})
