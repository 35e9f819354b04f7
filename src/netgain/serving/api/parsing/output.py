"""Collects the parts of an answer: white space beside a tool call is dropped, unless more content follows the call."""

from netgain.serving.api.parsing.call import Call
from netgain.serving.api.parsing.parts import Content, NewId, Part, ToolCallArguments, ToolCallStart


class Output:
    """Gives every call its index and id."""

    def __init__(self, new_id: NewId) -> None:
        self._new_id = new_id
        self._parts: list[Part] = []
        self._text: list[str] = []
        self._space = ""  # may stand before a call
        self._calls = 0
        self._after_call = False

    def content(self, text: str) -> None:
        """More content."""
        if not text:
            return
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._text.append(body)
            self._after_call = False

    def call(self, call: Call) -> None:
        """A complete call."""
        self._space = ""
        self._flush()
        self._parts.append(ToolCallStart(self._calls, self._new_id(), call.name))
        self._parts.append(ToolCallArguments(self._calls, call.arguments))
        self._calls += 1
        self._after_call = True

    def take(self) -> list[Part]:
        """What has come since the last take."""
        self._flush()
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> None:
        """The text has ended."""
        if not self._after_call:
            self._text.append(self._space)
        self._space = ""

    def _flush(self) -> None:
        text = "".join(self._text)
        self._text.clear()
        if text:
            self._parts.append(Content(text))
