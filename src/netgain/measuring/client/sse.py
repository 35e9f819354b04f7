"""Server-sent events from bytes that arrive in any pieces: a line or a character may be split anywhere."""

from netgain.errors import NetgainError

_EVENT_LIMIT_BYTES = 32 * 1024 * 1024


class StreamError(NetgainError):
    """The bytes are not a usable event stream."""


class SSEParser:
    """Feed it what the socket gives; it returns the `data` of each event that became complete.

    Works on bytes (UTF-8 is decoded only with the whole event, by the JSON decoder), so multi-byte characters may be
    split. Lines end in LF, CRLF or CR; comments, ids, retries and event names are skipped; several data lines of one
    event are joined by LF (WHATWG HTML, section 9.2.6).
    """

    __slots__ = ("_data", "_held", "_held_bytes", "_started")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # pieces of a line that has not ended yet
        self._held_bytes = 0
        self._data: list[bytes] = []  # data lines of the event that has not ended yet
        self._started = False

    def feed(self, piece: bytes) -> list[bytes]:
        """Returns the data of the events completed by `piece`; raises StreamError when an event grows past 32 MiB."""
        if not piece:
            return []
        if (
            piece.startswith(b"data: ")
            and piece.endswith(b"\n\n")
            and piece.find(b"\n") == len(piece) - 2
            and not self._held
            and not self._data
            and b"\r" not in piece
        ):  # nearly always a piece is exactly one event of one line
            self._started = True
            return [piece[6:-2]]
        if b"\n" not in piece and b"\r" not in piece and not (self._held and self._held[-1].endswith(b"\r")):
            self._hold(piece)
            return []
        whole = b"".join((*self._held, piece)) if self._held else piece
        held = b""
        if b"\r" in whole:
            if whole.endswith(b"\r"):  # its LF may come with the next piece
                whole, held = whole[:-1], b"\r"
            whole = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = whole.split(b"\n")
        self._held, self._held_bytes = [], 0
        if rest or held:
            self._hold(rest + held)
        return self._take(lines)

    def close(self) -> list[bytes]:
        """The stream ended: returns the last event if its closing blank line is missing, as some servers do."""
        rest = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        return self._take([*rest.replace(b"\r", b"\n").split(b"\n"), b""])

    def _hold(self, piece: bytes) -> None:
        self._held.append(piece)
        self._held_bytes += len(piece)
        self._check(self._held_bytes)

    def _check(self, size: int) -> None:
        if size > _EVENT_LIMIT_BYTES:
            raise StreamError(
                f"an event of the stream is longer than {_EVENT_LIMIT_BYTES} bytes; check that the URL is a streaming endpoint"
            )

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for line in lines:
            if not self._started:
                self._started = True
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
                if len(self._data) > 1:
                    self._check(sum(map(len, self._data)))
            elif not line and self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
            elif line == b"data":
                self._data.append(b"")
        return events
