"""Sends one request and times its answer. Whatever goes wrong becomes a record with a named kind of error."""

import asyncio
import errno
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import aiohttp
import msgspec

from netgain.ledger.records import RequestRecord
from netgain.measuring.client.body import Prepared
from netgain.measuring.client.chunk import Usage, error_message, read_chunk
from netgain.measuring.client.record import ClientRecord, ErrorKind
from netgain.measuring.client.sse import SSEParser, StreamError
from netgain.measuring.client.tokens import Arrival, count_tokens

_LINGER_S = 0.25  # how long the end of the HTTP body may follow [DONE] before the connection is given up instead
_RECORD = msgspec.json.Decoder(RequestRecord)


class Sessions(NamedTuple):
    """How requests go out: over connections that are `kept` for the next ones, or over a `fresh` one each."""

    kept: aiohttp.ClientSession
    fresh: aiohttp.ClientSession


class Connecting:
    """Seconds that one request spent opening its connection; aiohttp's trace hooks write here. `resent`: over a second one,
    because the first had served before and was found closed."""

    __slots__ = ("began_s", "resent", "seconds")

    def __init__(self) -> None:
        self.began_s = 0.0
        self.seconds: float | None = None
        self.resent = False


def trace_connecting() -> aiohttp.TraceConfig:
    """Hooks that fill the `Connecting` given as a request's trace context; other requests are not traced."""

    async def begin(_session: object, context: SimpleNamespace, _params: object) -> None:
        if isinstance(context.trace_request_ctx, Connecting):
            context.trace_request_ctx.began_s = time.monotonic()

    async def end(_session: object, context: SimpleNamespace, _params: object) -> None:
        if isinstance(context.trace_request_ctx, Connecting):
            context.trace_request_ctx.seconds = time.monotonic() - context.trace_request_ctx.began_s

    async def reuse(_session: object, context: SimpleNamespace, _params: object) -> None:
        if isinstance(context.trace_request_ctx, Connecting):
            context.trace_request_ctx.seconds = 0.0

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_start.append(begin)
    trace.on_connection_create_end.append(end)
    trace.on_connection_reuseconn.append(reuse)
    return trace


class _Failure(Exception):
    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Answer:
    """What has come of one answer so far."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.text: list[str] = []
        self.aside: list[str] = []
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.total_tokens: int | None = None
        self.status: int | None = None
        self.finish_reason: str | None = None
        self.server: RequestRecord | None = None
        self.done_s: float | None = None

    def add(self, data: bytes, at_s: float) -> None:
        """Take in the data of one event that arrived at `at_s`."""
        if self.done_s is not None:
            return
        if data == b"[DONE]":
            self.done_s = at_s
            return
        chunk = read_chunk(data)
        if failure := chunk.failure():
            raise _Failure(ErrorKind.SERVER, f"the server reported an error in the stream: {failure}")
        if chunk.usage is not None:
            self._count(chunk.usage)
        if chunk.netgain:
            self._account(chunk.netgain)
        if not chunk.choices:
            return
        text, aside, finish_reason = chunk.said()
        if text:
            self.text.append(text)
        if aside:
            self.aside.append(aside)
        running = None if chunk.usage is None else chunk.usage.completion_tokens
        self.arrivals.append(Arrival(at_s, len(text) + len(aside), len(text), running))
        self.finish_reason = finish_reason or self.finish_reason

    def _count(self, usage: Usage) -> None:
        if usage.completion_tokens is not None:
            self.total_tokens = usage.completion_tokens
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _account(self, block: msgspec.Raw) -> None:
        try:
            self.server = _RECORD.decode(block)
        except msgspec.DecodeError:  # another version's record, or another server's field of that name: unknown
            self.server = None

    @property
    def complete(self) -> bool:
        return self.done_s is not None or self.finish_reason is not None

    def seen(self) -> str:
        """How far the answer came, for error messages."""
        if self.status is None:
            return "before any answer"
        textual = sum(1 for arrival in self.arrivals if arrival.text_length)
        return f"after {textual} chunks with text" if textual else "before the first token"


async def send(
    sessions: Sessions,
    base: str,
    prepared: Prepared,
    scheduled_s: float,
    timeout_s: float,
    run_ends_s: float | None,
    retokenise: Callable[[str], int] | None,
    turn: int = 0,
) -> ClientRecord:
    """Send now, read the stream to its end, return the record. Only cancellation is raised.

    A server may close a connection at the moment in which it is used again. A request that is lost so, before anything of an
    answer came, is sent a second time over a connection of its own (RFC 9112, section 9.3.1); its times go on counting.
    `timeout_s` counts from now; `run_ends_s` is the monotonic time at which the whole run stops (None: never).
    """
    answer, connecting = _Answer(), Connecting()
    failure: _Failure | None = None
    sent_s = time.monotonic()
    limit_s = sent_s + timeout_s
    by_run = run_ends_s is not None and run_ends_s < limit_s
    loop = asyncio.get_running_loop()
    ends = loop.time() + ((run_ends_s or 0.0) if by_run else limit_s) - sent_s
    try:
        async with asyncio.timeout_at(ends):
            try:
                await _exchange(sessions.kept, base, prepared, answer, connecting)
            except (aiohttp.ClientError, OSError) as error:
                if connecting.seconds != 0.0 or not _closed_before_an_answer(error, answer):
                    raise
                connecting.seconds, connecting.resent = None, True
                await _exchange(sessions.fresh, base, prepared, answer, connecting)
    except _Failure as error:
        failure = error
    except StreamError as error:
        failure = _Failure(ErrorKind.MALFORMED, str(error))
    except TimeoutError:
        if by_run:
            failure = _Failure(
                ErrorKind.DEADLINE, f"the run's time ended {answer.seen()}; give the run a longer deadline"
            )
        else:
            failure = _Failure(ErrorKind.TIMEOUT, f"no complete answer within {timeout_s:g} s ({answer.seen()})")
    except (aiohttp.ClientError, OSError) as error:
        failure = _transport_failure(error, answer)
    finished_s = time.monotonic() if failure is not None or answer.done_s is None else answer.done_s
    return _record(prepared, answer, connecting, failure, scheduled_s, sent_s, finished_s, retokenise, turn)


async def _exchange(
    session: aiohttp.ClientSession, base: str, prepared: Prepared, answer: _Answer, connecting: Connecting
) -> None:
    parser = SSEParser()
    async with session.post(base + prepared.path, data=prepared.body, trace_request_ctx=connecting) as response:
        answer.status = response.status
        if response.status >= 400:
            body = await _read_up_to(response, 65536)
            raise _Failure(ErrorKind.HTTP, f"status {response.status}: {error_message(body)}")
        kind = response.headers.get("Content-Type", "")
        if response.status != 200 or "json" in kind or "html" in kind:
            body = await _read_up_to(response, 200)
            raise _Failure(
                ErrorKind.MALFORMED,
                f"the server answered with status {response.status} and {kind or 'no content type'} instead of an event "
                f"stream: {body.decode('utf-8', 'replace')!r}",
            )
        while piece := await response.content.readany():
            at_s = time.monotonic()
            for data in parser.feed(piece):
                answer.add(data, at_s)
            if answer.done_s is not None:
                await _drain(response)
                return
        at_s = time.monotonic()
        for data in parser.close():
            answer.add(data, at_s)
        if not answer.complete:
            raise _Failure(ErrorKind.CUT, f"the stream ended {answer.seen()}, without a finish reason or [DONE]")


async def _read_up_to(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    body = b""
    while len(body) < limit_bytes and (piece := await response.content.readany()):
        body += piece
    return body[:limit_bytes]


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the end of the body that follows [DONE], so that the connection can be used again."""
    try:
        async with asyncio.timeout(_LINGER_S):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError):
        response.close()


def _closed_before_an_answer(error: Exception, answer: _Answer) -> bool:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return answer.status is None and isinstance(error.message, str)  # else it holds the beginning of a head
    return answer.status is None and isinstance(error, ConnectionResetError | BrokenPipeError | aiohttp.ClientOSError)


def _transport_failure(error: Exception, answer: _Answer) -> _Failure:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EADDRNOTAVAIL):
        return _Failure(
            ErrorKind.CLIENT, f"this client cannot open another connection: {error}; raise its limits (ulimit -n)"
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return _Failure(ErrorKind.CONNECT, f"no connection to the server: {error}")
    return _Failure(ErrorKind.CUT, f"the connection broke {answer.seen()}: {type(error).__name__} {error}".rstrip())


def _record(
    prepared: Prepared,
    answer: _Answer,
    connecting: Connecting,
    failure: _Failure | None,
    scheduled_s: float,
    sent_s: float,
    finished_s: float,
    retokenise: Callable[[str], int] | None,
    turn: int,
) -> ClientRecord:
    text, aside = "".join(answer.text), "".join(answer.aside)
    recounted = retokenise(aside + text) if retokenise is not None and answer.total_tokens is None else None
    count = count_tokens(answer.arrivals, answer.total_tokens, recounted)
    return ClientRecord(
        item_id=prepared.item.id,
        category=prepared.item.category,
        turn=turn,
        scheduled_s=scheduled_s,
        sent_s=sent_s,
        finished_s=finished_s,
        first_token_s=count.times_s[0] if count.times_s else None,
        first_text_s=count.first_text_s,
        chunk_times_s=count.times_s,
        chunk_tokens=count.tokens,
        tokens_source=count.source,
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        output_tokens=count.total,
        finish_reason=answer.finish_reason,
        status=answer.status,
        error=None if failure is None else str(failure),
        error_kind=None if failure is None else failure.kind,
        connect_s=connecting.seconds,
        resent=connecting.resent,
        text=text,
        reasoning=aside,
        server=answer.server,
    )
