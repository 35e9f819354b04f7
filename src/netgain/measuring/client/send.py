"""Sends one request and times its answer. Whatever goes wrong becomes a record with a named kind of error."""

import asyncio
import errno
import time
import zlib
from collections.abc import Callable

import msgspec

from netgain.ledger.records import RequestRecord
from netgain.measuring.client.body import Prepared
from netgain.measuring.client.chunk import Usage, error_message, possible, read_chunk
from netgain.measuring.client.connection import Connection, Connections
from netgain.measuring.client.record import ClientRecord, ErrorKind
from netgain.measuring.client.sse import SSEParser, StreamError
from netgain.measuring.client.tokens import Arrival, count_tokens
from netgain.measuring.client.wire import Head, Response, WireError

_LINGER_S = 0.25  # how long the end of the HTTP body may follow [DONE] before the connection is given up instead
_REFUSAL_BYTES = 65536  # read at most of an answer that is no stream
_RECORD = msgspec.json.Decoder(RequestRecord)


class _Failure(Exception):
    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Lost(_Failure):
    """The connection was closed before the answer was complete."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorKind.CUT, message)


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
        self.ended_s: float | None = None  # the stamp of what ended it, for better or worse
        self.connect_s: float | None = None
        self.resent = False
        self.begun = False  # whether anything came over the connection used last

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
        running = None if chunk.usage is None else possible(chunk.usage.completion_tokens)
        self.arrivals.append(Arrival(at_s, len(text) + len(aside), len(text), running))
        self.finish_reason = finish_reason or self.finish_reason

    def _count(self, usage: Usage) -> None:
        if (told := possible(usage.completion_tokens)) is not None:
            self.total_tokens = told
        if (told := possible(usage.prompt_tokens)) is not None:
            self.prompt_tokens = told
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = possible(usage.prompt_tokens_details.cached_tokens)

    def _account(self, block: msgspec.Raw) -> None:
        try:
            self.server = _RECORD.decode(block)
        except (
            msgspec.DecodeError,
            RecursionError,
        ):  # another version's record, or another server's field of that name: unknown
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


class _Exchange:
    """One request on a connection, and what comes back. `over` is done when all of the answer was read, or says what went
    wrong."""

    def __init__(self, answer: _Answer) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer = answer
        self._parser = SSEParser()
        self._refusal: bytearray | None = None  # the body of an answer that is no stream
        self._unpack: Callable[[bytes], bytes] | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self.response = Response()
        self.over: asyncio.Future[None] = self._loop.create_future()

    def received(self, at_s: float, data: bytes) -> None:
        if self.over.done():
            return
        response, answer = self.response, self._answer
        answer.ended_s = at_s
        begun = answer.status is not None
        pieces = response.feed(data)
        if not begun and response.head is not None:
            self._begin(response.head)
        for piece in pieces:
            if self._unpack is not None:
                piece = self._unpack(piece)
            if self._refusal is not None:
                self._refusal += piece
                continue
            for event in self._parser.feed(piece):
                answer.add(event, at_s)
        if response.ended or (self._refusal is not None and len(self._refusal) >= _REFUSAL_BYTES):
            self._end(at_s)
        elif answer.done_s is not None and self._lingering is None:
            # the end of the body follows [DONE]; then the connection can be used again
            self._lingering = self._loop.call_later(_LINGER_S, self._finish)

    def closed(self, at_s: float, error: Exception | None) -> None:
        if self.over.done():
            return
        self._answer.ended_s = at_s
        if self._answer.done_s is not None:
            self._finish()
            return
        missing = self.response.close()
        if error is not None:
            missing = f"{type(error).__name__} {error}".rstrip()
        if missing is not None:
            raise _Lost(f"the connection broke {self._answer.seen()}: {missing}")
        self._end(at_s)

    def failed(self, error: Exception) -> None:
        if not self.over.done():
            self.over.set_exception(error)

    def leave(self) -> None:
        """Nobody waits any more."""
        if self.over.done() and not self.over.cancelled():
            self.over.exception()  # seen, also where whoever waited was cancelled meanwhile
        if self._lingering is not None:
            self._lingering.cancel()

    def _begin(self, head: Head) -> None:
        self._answer.status = head.status
        kind = head.headers.get("content-type", "")
        if head.status != 200 or "json" in kind or "html" in kind:
            self._refusal = bytearray()
        coding = head.headers.get("content-encoding", "identity").strip().lower()
        if coding in ("gzip", "deflate"):
            self._unpack = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress
        elif coding not in ("", "identity"):
            raise _Failure(ErrorKind.MALFORMED, f"the answer is packed ({coding}), which was not asked for")

    def _end(self, at_s: float) -> None:
        """The body is complete."""
        answer = self._answer
        if self._refusal is not None:
            raise _refused(self.response, bytes(self._refusal))
        if answer.done_s is None:
            for event in self._parser.close():
                answer.add(event, at_s)
        if not answer.complete:
            raise _Failure(ErrorKind.CUT, f"the stream ended {answer.seen()}, without a finish reason or [DONE]")
        self._finish()

    def _finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def send(
    connections: Connections,
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
    answer = _Answer()
    failure: _Failure | None = None
    sent_s = time.monotonic()
    limit_s = sent_s + timeout_s
    by_run = run_ends_s is not None and run_ends_s < limit_s
    loop = asyncio.get_running_loop()
    ends = loop.time() + ((run_ends_s or 0.0) if by_run else limit_s) - sent_s
    try:
        async with asyncio.timeout_at(ends):
            await _exchange(connections, prepared, answer)
    except _Failure as error:
        failure = error
    except StreamError as error:
        failure = _Failure(ErrorKind.MALFORMED, str(error))
    except WireError as error:
        failure = _Failure(ErrorKind.MALFORMED, f"the answer cannot be read: {error}")
    except zlib.error as error:
        failure = _Failure(ErrorKind.MALFORMED, f"the answer cannot be unpacked ({error})")
    except TimeoutError:
        answer.ended_s = None
        if by_run:
            failure = _Failure(
                ErrorKind.DEADLINE, f"the run's time ended {answer.seen()}; give the run a longer deadline"
            )
        else:
            failure = _Failure(ErrorKind.TIMEOUT, f"no complete answer within {timeout_s:g} s ({answer.seen()})")
    except Exception as error:  # a fault of ours must not take the other requests with it; it voids the run
        failure = _Failure(ErrorKind.CLIENT, f"this client could not go on: {type(error).__name__} {error}")
    finished_s = answer.done_s if failure is None and answer.done_s is not None else answer.ended_s
    if finished_s is None:
        finished_s = time.monotonic()
    return _record(prepared, answer, failure, scheduled_s, sent_s, finished_s, retokenise, turn)


async def _exchange(connections: Connections, prepared: Prepared, answer: _Answer) -> None:
    request = connections.request(prepared.path, prepared.body)
    kept = connections.kept()
    if kept is not None:
        answer.connect_s = 0.0
        try:
            await _over(kept, connections, request, answer)
        except _Lost:
            if answer.begun:
                raise
        else:
            return
        answer.connect_s, answer.resent = None, True
    began_s = time.monotonic()
    try:
        fresh = await connections.open()
    except OSError as error:
        raise _not_opened(error) from error
    answer.connect_s = time.monotonic() - began_s
    await _over(fresh, connections, request, answer)


async def _over(connection: Connection, connections: Connections, request: bytes, answer: _Answer) -> None:
    exchange = _Exchange(answer)
    connection.send(request, exchange)
    try:
        await exchange.over
    finally:
        exchange.leave()
        answer.begun = exchange.response.begun
        if exchange.response.ended and exchange.response.reusable and not answer.resent:
            connections.give_back(connection)
        else:
            connection.end()


def _refused(response: Response, body: bytes) -> _Failure:
    assert response.head is not None
    status, headers = response.head.status, response.head.headers
    if status >= 400:
        return _Failure(ErrorKind.HTTP, f"status {status}: {error_message(body)}")
    if status >= 300 and (place := headers.get("location")) is not None:
        return _Failure(
            ErrorKind.MALFORMED, f"the server answered with status {status} and sends on to {place}; give that URL"
        )
    kind = headers.get("content-type", "")
    return _Failure(
        ErrorKind.MALFORMED,
        f"the server answered with status {status} and {kind or 'no content type'} instead of an event stream: "
        f"{body[:200].decode('utf-8', 'replace')!r}",
    )


def _not_opened(error: OSError) -> _Failure:
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EADDRNOTAVAIL):
        return _Failure(
            ErrorKind.CLIENT, f"this client cannot open another connection: {error}; raise its limits (ulimit -n)"
        )
    return _Failure(ErrorKind.CONNECT, f"no connection to the server: {error}")


def _record(
    prepared: Prepared,
    answer: _Answer,
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
        connect_s=answer.connect_s,
        resent=answer.resent,
        text=text,
        reasoning=aside,
        server=answer.server,
    )
