"""A transparent streaming proxy: bytes pass as they come, in both directions, and what passes is observed."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from netgain.measuring.record.observation import Observation
from netgain.measuring.record.usage import UsageFilter, with_usage

# RFC 9110, section 7.6.1; the Host is the upstream's, and an expectation is met by this server itself
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_ADDED_BY_SERVER = ("Content-Type", "Date", "Server")
_CLIENT_LEFT = "the client left before the answer was complete"
_CONNECT_S = 30.0
_IDLE_CONNECTION_S = 2.0  # shorter than servers keep idle connections, so that none is reused while it closes
_HEADER_BYTES = 64 << 10
_READ_BYTES = 64 << 10


class Proxy:
    """Forwards every request to `upstream` (no trailing slash); `on_end` gets each exchange once it is over.

    With `ask_usage` a stream that does not ask for token counts is made to, and the extra chunk is kept from the client.
    """

    def __init__(self, upstream: str, on_end: Callable[[Observation], object], *, ask_usage: bool = False) -> None:
        self.in_flight = self.requests = self.failed = 0
        self._upstream = upstream
        self._on_end = on_end
        self._ask_usage = ask_usage
        self._session: aiohttp.ClientSession | None = None

    def runner(self, grace_s: float = 5.0) -> web.AppRunner:
        """The server, to be set up and cleaned up by the caller; requests in flight get `grace_s` at the end."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.cleanup_ctx.append(self._connected)
        app.on_response_prepare.append(_drop_own_headers)
        return web.AppRunner(
            app,
            handler_cancellation=True,  # a client that hangs up must end its request upstream
            access_log=None,
            shutdown_timeout=grace_s,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
            auto_decompress=False,
            logger=_one_line_log(),
        )

    async def _connected(self, app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            auto_decompress=False,
            skip_auto_headers=_NOT_ADDED,
            read_bufsize=_READ_BYTES,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        ) as self._session:
            yield

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = Observation(request.method, _origin_form(request.raw_path), request.headers)
        self.requests += 1
        self.in_flight += 1
        try:
            answer = await self._forward(request, seen)
        except asyncio.CancelledError:
            seen.end(_CLIENT_LEFT)
            raise
        except _ClientLeft:
            seen.end(_CLIENT_LEFT)
            answer = web.Response(status=499)  # not sent: nobody is there
        finally:
            self.in_flight -= 1
            self.failed += seen.error is not None or (seen.status or 0) >= 400
            if seen.ended_s is None:
                seen.end("the proxy failed")
            self._on_end(seen)
        return answer

    async def _forward(self, request: web.Request, seen: Observation) -> web.StreamResponse:
        assert self._session is not None
        headers = _end_to_end(request.headers)
        body: AsyncIterator[bytes] | bytes | None = _observed(request, seen) if request.body_exists else None
        filtering = False
        if self._ask_usage and request.method == "POST" and "content-encoding" not in request.headers:
            plain = await _read(request, seen)
            changed = with_usage(request.raw_path, plain)
            filtering = changed is not None
            body = plain if changed is None else changed
            headers["Content-Length"] = str(len(body))
            if filtering:
                headers["Accept-Encoding"] = "identity"  # a packed stream could not be edited
        target = URL(self._upstream + seen.path, encoded=True)
        try:
            call = self._session.request(request.method, target, headers=headers, data=body, allow_redirects=False)
            async with call as upstream:
                return await self._answer(request, upstream, seen, UsageFilter() if filtering else None)
        except aiohttp.ClientConnectorError as error:
            return _unreachable(seen, f"{self._upstream} cannot be reached: {error.os_error.strerror or error}")
        except aiohttp.ServerTimeoutError:
            return _unreachable(seen, f"{self._upstream} accepts no connection within {_CONNECT_S:g} s")
        except (aiohttp.ClientError, ConnectionError) as error:
            # the upstream hung up: so does this server, with what came so far
            seen.end(f"the upstream broke the connection ({type(error).__name__})")  # its words may quote headers
            if request.transport is not None:
                request.transport.close()
            return web.Response(status=502)  # not sent: the connection is closed

    async def _answer(
        self, request: web.Request, upstream: aiohttp.ClientResponse, seen: Observation, keep: UsageFilter | None
    ) -> web.StreamResponse:
        headers = _end_to_end(upstream.headers)
        if keep is not None and not upstream.content_type.startswith("text/event-stream"):
            keep = None
        if keep is not None:
            headers.popall("Content-Length", None)
        seen.head(upstream.status, upstream.headers)
        answer = _Passed(status=upstream.status, reason=upstream.reason, headers=headers)
        answer.not_said = tuple(name for name in _ADDED_BY_SERVER if name not in upstream.headers)
        await answer.prepare(request)
        async for piece in upstream.content.iter_any():
            now_s = time.monotonic()
            shown = piece if keep is None else keep.feed(piece)
            seen.came(piece, now_s)
            if shown:
                await _pass(answer, shown)
        if keep is not None and (rest := keep.close()):
            await _pass(answer, rest)
        await answer.write_eof()
        seen.end()
        return answer


def _one_line_log() -> logging.Logger:
    """What the web server says of requests that are no HTTP, without a traceback for each."""
    log = logging.Logger("netgain.record", logging.WARNING)
    log.addHandler(handler := logging.StreamHandler())
    handler.addFilter(_shorten)
    return log


def _shorten(record: logging.LogRecord) -> bool:
    cause = record.exc_info[1] if record.exc_info else None
    told = f"{type(cause).__name__}: {cause}" if cause is not None else record.getMessage()
    record.msg, record.args = f"record: {record.getMessage()} ({' '.join(told.split())[:200]})", ()
    record.exc_info = record.exc_text = None
    return True


class _Passed(web.StreamResponse):
    """An upstream's answer; `not_said` are headers that this server would add and the upstream did not."""

    not_said: tuple[str, ...] = ()


class _ClientLeft(Exception):
    """The connection to the client is gone."""


async def _pass(answer: web.StreamResponse, data: bytes) -> None:
    try:
        await answer.write(data)
    except ConnectionError as error:
        raise _ClientLeft from error


async def _observed(request: web.Request, seen: Observation) -> AsyncIterator[bytes]:
    async for piece in request.content.iter_any():
        seen.sent(piece)
        yield piece


async def _read(request: web.Request, seen: Observation) -> bytes:
    return b"".join([piece async for piece in _observed(request, seen)])


def _origin_form(target: str) -> str:
    """The target as servers expect it; clients that take this one for a forward proxy put a whole URL there."""
    if target.startswith("/"):
        return target
    rest = target.partition("://")[2]
    start = min((at for mark in "/?" if (at := rest.find(mark)) >= 0), default=len(rest))
    path = rest[start:]
    return path if path.startswith("/") else f"/{path}"


def _end_to_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers that are meant for the other end, in order, repeated ones included."""
    named = {
        name.strip().lower()
        for key, value in headers.items()
        if key.lower() == "connection"
        for name in value.split(",")
    }
    dropped = _HOP_BY_HOP | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


async def _drop_own_headers(request: web.Request, response: web.StreamResponse) -> None:
    """What the web server adds by itself is taken out again where the upstream did not say it."""
    if isinstance(response, _Passed):
        for name in response.not_said:
            response.headers.popall(name, None)


def _unreachable(seen: Observation, reason: str) -> web.Response:
    seen.end(reason)
    detail = {"message": f"netgain record: {reason}", "type": "upstream_unreachable", "param": None, "code": None}
    return web.Response(status=502, body=msgspec.json.encode({"error": detail}), content_type="application/json")
