"""The events of a stream whose text alone changes from token to token, and its usage: the rest of their JSON is made once."""

import uuid
from collections.abc import Callable

import msgspec

from netgain.serving.api.shapes import Usage

_encode = msgspec.json.Encoder().encode


def event(data: bytes) -> bytes:
    """A server-sent event."""
    return b"data: " + data + b"\n\n"


class Frame:
    """Cut from a real event, so that nothing here knows what JSON it holds: `sample` makes the event of a text, with `usage`
    (None: such events have none)."""

    def __init__(self, sample: Callable[[str], bytes], usage: Usage | None) -> None:
        mark = uuid.uuid4().hex
        before, self._after = sample(mark).split(_encode(mark))
        self._before, self._between = (before, b"") if usage is None else before.split(_encode(usage))

    def event(self, text: str, usage: Usage | None) -> bytes:
        """The event of another text and usage."""
        if usage is None:
            return b"".join((self._before, _encode(text), self._after))
        return b"".join((self._before, _encode(usage), self._between, _encode(text), self._after))
