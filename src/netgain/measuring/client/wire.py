"""An HTTP/1.1 answer out of bytes that arrive in any pieces (RFC 9112): its head, and its body without the framing."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from netgain.errors import NetgainError

_HEAD_LIMIT_BYTES = 64 * 1024
_LINE_LIMIT_BYTES = 4096
_HEX = b"0123456789abcdefABCDEF"
_BODILESS = (204, 304)


class WireError(NetgainError):
    """The bytes are no HTTP answer."""


class Head(NamedTuple):
    """Status and headers, names in lower case; of a name that comes twice the values are joined by a comma. `minor`: the digit
    behind HTTP/1."""

    status: int
    headers: Mapping[str, str]
    minor: str


class Response:
    """Feed it what the socket gives; it returns the pieces of the body that came with it.

    `ended`: the body is complete. `reusable`: another request may follow on the connection. `begun`: any byte came.
    """

    __slots__ = ("_body", "_held", "_left", "_part", "begun", "ended", "head", "reusable")

    def __init__(self) -> None:
        self.head: Head | None = None
        self.begun = False
        self.ended = False
        self.reusable = False
        self._held = b""  # what is not complete yet: of the head, of a line
        self._body: Literal["chunked", "length", "rest"] = "rest"
        self._left = 0  # bytes still to come of the chunk, or of a body whose length is known
        self._part: Literal["size", "data", "after", "trailer"] = "size"  # of the chunked form

    def feed(self, data: bytes) -> list[bytes]:
        """Raises WireError."""
        self.begun = True
        if self.head is None:
            found = self._take_head(data)
            if found is None:
                return []
            data = found
        if self.ended:
            self.reusable = self.reusable and not data  # nobody asked for more
            return []
        if self._body == "chunked":
            return self._take_chunks(data)
        if not data:
            return []
        if self._body == "rest":
            return [data]
        piece, self._left = data[: self._left], max(0, self._left - len(data))
        if self._left == 0:
            self.ended = True
            self.reusable = self.reusable and len(piece) == len(data)
        return [piece]

    def close(self) -> str | None:
        """The connection ended, which is the end of a body that has no other. Returns what is missing, in words, or None."""
        self.reusable = False
        if self.head is None:
            return "it was closed within the head" if self.begun else "it was closed"
        if not self.ended and self._body != "rest":
            return "it was closed in the middle of the body"
        self.ended = True
        return None

    def _take_head(self, data: bytes) -> bytes | None:
        """What follows the head; None while it is not complete. Interim answers (1xx) are passed over."""
        whole = self._held + data
        while True:
            whole = whole.lstrip(b"\r\n")
            ends = [(place, len(mark)) for mark in (b"\r\n\r\n", b"\n\n") if (place := whole.find(mark)) >= 0]
            if not ends or not whole:
                if len(whole) > _HEAD_LIMIT_BYTES:
                    raise WireError(f"its head is longer than {_HEAD_LIMIT_BYTES} bytes")
                if not b"HTTP/".startswith(whole[:5]):
                    raise WireError(f"it does not begin as HTTP does: {whole[:60]!r}")
                self._held = whole
                return None
            place, size = min(ends)
            head, whole = _read_head(whole[:place]), whole[place + size :]
            if not 100 <= head.status < 200:
                break
        self.head, self._held = head, b""
        self._frame(head)
        return whole

    def _frame(self, head: Head) -> None:
        """How the body's end is found (RFC 9112, section 6.3)."""
        said = head.headers.get("connection", "").lower()
        self.reusable = "close" not in said and (head.minor != "0" or "keep-alive" in said)
        length = head.headers.get("content-length")
        if head.status in _BODILESS:
            self.ended = True
        elif (coding := head.headers.get("transfer-encoding")) is not None:
            self._body = "chunked" if coding.lower().rpartition(",")[2].strip() == "chunked" else "rest"
        elif length is not None:
            lengths = {part.strip() for part in length.split(",")}
            number = lengths.pop()
            if lengths or not (number.isascii() and number.isdigit()):
                raise WireError(f"its Content-Length is {length[:60]!r}")
            self._body, self._left = "length", int(number)
            self.ended = self._left == 0
        if self._body == "rest" and not self.ended:
            self.reusable = False

    def _take_chunks(self, data: bytes) -> list[bytes]:
        if self._part == "size" and not self._held:  # nearly always a piece is exactly one chunk
            stop = data.find(b"\r\n", 0, 18)
            if stop > 0 and not data[:stop].strip(_HEX) and data.endswith(b"\r\n"):
                size = int(data[:stop], 16)
                if size and len(data) == stop + 4 + size:
                    return [data[stop + 2 : -2]]
        pieces: list[bytes] = []
        if self._held:
            data, self._held = self._held + data, b""
        at, size = 0, len(data)
        while at < size:
            if self._part == "data":
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left == 0:
                    self._part = "after"
                continue
            stop = data.find(b"\n", at)
            if stop < 0:
                if size - at > _LINE_LIMIT_BYTES:
                    raise WireError("a line of its chunked body does not end")
                self._held = data[at:]
                break
            line = data[at:stop].rstrip(b"\r")
            at = stop + 1
            if self._part == "size":
                number = line.partition(b";")[0].strip()
                if not number or number.strip(_HEX) or len(number) > 16:
                    raise WireError(f"a chunk of its body has the size {line[:60]!r}")
                self._left = int(number, 16)
                self._part = "data" if self._left else "trailer"
            elif self._part == "after":
                if line:
                    raise WireError("a chunk of its body is longer than it says")
                self._part = "size"
            elif not line:
                self.ended = True
                self.reusable = self.reusable and at == size
                break
        return pieces


def _read_head(text: bytes) -> Head:
    first, *lines = text.decode("latin-1").replace("\r\n", "\n").split("\n")
    version, _, rest = first.partition(" ")
    status = rest.partition(" ")[0]
    if not (version.startswith("HTTP/1.") and status.isascii() and status.isdigit() and len(status) == 3):
        raise WireError(f"it does not begin as HTTP/1.1 does: {first[:60]!r}")
    headers: dict[str, str] = {}
    name = ""
    for line in lines:
        if line[:1] in (" ", "\t") and name:  # an old way of going on with the line before
            headers[name] = f"{headers[name]} {line.strip()}"
            continue
        name, found, value = line.partition(":")
        name = name.strip().lower()
        if not found or not name:
            raise WireError(f"its head has the line {line[:60]!r}")
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return Head(int(status), headers, version[7:])
