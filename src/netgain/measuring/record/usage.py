"""Asking for token counts on a client's behalf, and taking the extra chunk out again: the client sees what it asked for."""

from typing import Any

import msgspec

from netgain.measuring.client.chunk import read_chunk
from netgain.measuring.client.sse import SSEParser, StreamError

_PATHS = ("/chat/completions", "/completions")


def with_usage(path: str, body: bytes) -> bytes | None:
    """The body with `stream_options.include_usage` set; None where the request is no stream, or asks for it itself."""
    if not path.partition("?")[0].endswith(_PATHS):
        return None
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("stream") is not True:
        return None
    options = found.get("stream_options")
    if options is not None and (not isinstance(options, dict) or options.get("include_usage")):
        return None
    return msgspec.json.encode({**found, "stream_options": {**(options or {}), "include_usage": True}})


class UsageFilter:
    """Passes a stream's events on as they are, each as soon as it is complete, but for chunks that hold usage alone."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """What may go to the client now."""
        data = self._held + piece
        end = max((data.rfind(mark) + len(mark) for mark in (b"\n\n", b"\r\n\r\n", b"\r\r") if mark in data), default=0)
        self._held = data[end:]
        return b"".join(event for event in _events(data[:end]) if not _is_usage(event))

    def close(self) -> bytes:
        """The stream ended: what was held back, complete or not."""
        held, self._held = self._held, b""
        return b"" if _is_usage(held) else held


def _events(data: bytes) -> list[bytes]:
    """Cut behind every blank line; joined again they are `data`."""
    found: list[bytes] = []
    event = b""
    for line in data.splitlines(keepends=True):
        event += line
        if not line.strip(b"\r\n"):
            found.append(event)
            event = b""
    return [*found, event] if event else found


def _is_usage(event: bytes) -> bool:
    if b'"usage"' not in event:
        return False
    parser = SSEParser()
    try:
        data = [*parser.feed(event), *parser.close()]
        return len(data) == 1 and (chunk := read_chunk(data[0])).choices == [] and chunk.usage is not None
    except StreamError:
        return False
