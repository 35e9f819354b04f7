"""Connections to the server under test, whose bytes are stamped at once and read afterwards.

What the socket gives is kept with its time, and nothing else is done before all sockets that are ready have been emptied: reading
tokens of one stream must not make the stamps of the others late. Reading goes on in slices, between which sockets are looked at.
"""

import asyncio
import math
import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol, cast
from urllib.parse import quote, urlsplit

from netgain.errors import UsageError

_SLICE_S = 0.001  # of reading, before sockets are looked at again
_MOST_PENDING_BYTES = 8 * 2**20  # of one connection, unread: past it the server has to wait
_NAMES_KEPT_S = 10.0  # how long an address that was looked up is used
_CLOSING_S = 1.0
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FRAMING = ("content-length", "transfer-encoding", "connection")
_OWN_HEADERS = {
    "Accept": "*/*",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "netgain",
}


class Receiver(Protocol):
    """Who reads the answer on a connection. May raise: the connection is then of no use, and `failed` is told."""

    def received(self, at_s: float, data: bytes) -> None: ...

    def closed(self, at_s: float, error: Exception | None) -> None: ...

    def failed(self, error: Exception) -> None: ...


class Reading:
    """What has come and is not read yet, in the order in which it came."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Connection, float, bytes]] = deque()
        self._going = False

    def add(self, connection: "Connection", at_s: float, data: bytes) -> None:
        """Empty `data`: the connection was closed."""
        self._waiting.append((connection, at_s, data))
        if not self._going:
            self._going = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        waiting, now = self._waiting, time.monotonic
        ends_s = now() + _SLICE_S
        while waiting:
            connection, at_s, data = waiting.popleft()
            connection.take(at_s, data)
            if now() >= ends_s:
                break
        self._going = bool(waiting)
        if waiting:
            self._loop.call_soon(self._go_on)


class Connection(asyncio.Protocol):
    """One of them. `receiver`: who waits for the answer (None: nobody, it is idle). `gone`: it was closed, by whomever."""

    def __init__(self, reading: Reading, open_now: "set[Connection]") -> None:
        self._reading = reading
        self._open = open_now
        self._pending = 0
        self._paused = False
        self._error: Exception | None = None
        self._transport: asyncio.Transport | None = None
        self.receiver: Receiver | None = None
        self.gone = False
        self.since_s = 0.0  # idle since

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        at_s = time.monotonic()
        if self.receiver is None:  # nothing was asked
            self.end()
            return
        self._reading.add(self, at_s, data)
        self._pending += len(data)
        if self._pending > _MOST_PENDING_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        self._open.discard(self)
        if self.receiver is not None:
            self._error = error
            self._reading.add(self, time.monotonic(), b"")

    @property
    def usable(self) -> bool:
        """Whether it is open, as far as is known, and everything that came is read."""
        return not self.gone and not self._pending and self._transport is not None and not self._transport.is_closing()

    def take(self, at_s: float, data: bytes) -> None:
        """Read what came at `at_s`."""
        self._pending -= len(data)
        if self._paused and self._pending < _MOST_PENDING_BYTES // 2 and self._transport is not None:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        receiver = self.receiver
        if receiver is None:
            return
        try:
            if data:
                receiver.received(at_s, data)
            else:
                receiver.closed(at_s, self._error)
        except Exception as error:
            receiver.failed(error)

    def send(self, data: bytes, receiver: Receiver) -> None:
        """Write a request whose answer `receiver` reads."""
        self.receiver = receiver
        if self._transport is not None and not self.gone:
            self._transport.write(data)
        else:
            self._reading.add(self, time.monotonic(), b"")

    def end(self) -> None:
        """Close it, whatever is under way."""
        self.receiver = None
        if self._transport is not None:
            self._transport.abort()


class Connections:
    """Opens connections to one server, without a limit, and keeps those that can be used again for `idle_s` seconds.

    `headers` go with every request. Raises UsageError for such as HTTP cannot carry.
    """

    def __init__(self, base: str, headers: Mapping[str, str], idle_s: float) -> None:
        parts = urlsplit(base)
        self._host = parts.hostname or ""
        self._secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._secure else 80)
        self._path = quote(parts.path, safe="/%:=&~+!$,;'@()*").encode()
        self._head = _head_lines({"Host": parts.netloc, **_OWN_HEADERS, **headers})
        self._idle_s = idle_s
        self._reading = Reading()
        self._tls: ssl.SSLContext | None = None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._addresses: list[tuple[str, int]] = []
        self._looked_up_s = -math.inf

    async def __aenter__(self) -> "Connections":
        if self._secure:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        return self

    async def __aexit__(self, *_: object) -> None:
        """All are closed when it returns."""
        for connection in tuple(self._open):
            connection.end()
        ends_s = time.monotonic() + _CLOSING_S
        while self._open and time.monotonic() < ends_s:
            await asyncio.sleep(0)

    def request(self, path: str, body: bytes) -> bytes:
        """The bytes of a POST to `path` below the server's address."""
        return b"POST %b%b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (
            self._path,
            path.encode(),
            self._head,
            len(body),
            body,
        )

    def kept(self) -> Connection | None:
        """One that is open already and idle, the one used last; None: there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                if time.monotonic() - connection.since_s <= self._idle_s:
                    return connection
                connection.end()
        return None

    async def open(self) -> Connection:
        """A new one. Raises OSError, that of the address tried last."""
        failure = OSError(f"{self._host} has no address")
        for place, (address, port) in enumerate(await self._resolved()):
            try:
                connection = await self._connect(address, port)
            except OSError as error:
                failure = error
            else:
                if place:  # tried first from now on
                    self._addresses = [(address, port), *(other for other in self._addresses if other[0] != address)]
                return connection
        self._looked_up_s = -math.inf
        raise failure

    def give_back(self, connection: Connection) -> None:
        """Its answer was read to the end, and another request may follow."""
        connection.receiver = None
        if self._idle_s <= 0.0 or not connection.usable:
            connection.end()
            return
        connection.since_s = time.monotonic()
        self._idle.append(connection)

    async def _connect(self, address: str, port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._reading, self._open),
            address,
            port,
            ssl=self._tls,
            server_hostname=self._host if self._tls is not None else None,
        )
        return connection

    async def _resolved(self) -> list[tuple[str, int]]:
        """Its addresses; looked up again when that was long ago."""
        if time.monotonic() - self._looked_up_s > _NAMES_KEPT_S:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            except UnicodeError as error:
                raise OSError(f"{self._host} is no name that can be looked up ({error})") from error
            self._addresses = list(dict.fromkeys((str(entry[4][0]), int(entry[4][1])) for entry in found))
            self._looked_up_s = time.monotonic()
        return self._addresses


def _head_lines(headers: Mapping[str, str]) -> bytes:
    """Names compare without case, later ones replace earlier ones. A message never repeats a value, which may be a key."""
    lines: dict[str, bytes] = {}
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise UsageError(f"the header name {name!r} cannot be sent; it must be a word such as Authorization")
        if name.lower() in _FRAMING:
            raise UsageError(f"the header {name} is set by the client itself; leave it out")
        try:
            line = f"{name}: {value}".encode()
        except UnicodeEncodeError:
            line = b"\n"
        if any((byte < 32 and byte != 9) or byte == 127 for byte in line):
            raise UsageError(f"the value of the header {name} holds characters that cannot be sent, such as a line end")
        lines[name.lower()] = line
    return b"".join(line + b"\r\n" for line in lines.values())
