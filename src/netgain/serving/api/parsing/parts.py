"""What generated text is made of for a chat client, and what every reader of it keeps to."""

from collections.abc import Callable
from typing import Protocol

import msgspec


class Content(msgspec.Struct, frozen=True):
    """More of the answer itself."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """More of what the model thought before it answered."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True):
    """A call begins; `index` counts the calls of one answer from 0."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True):
    """More of the JSON text of that call's arguments."""

    index: int
    text: str


Part = Content | Reasoning | ToolCallStart | ToolCallArguments

NewId = Callable[[], str]  # gives every tool call another id


class OutputParser(Protocol):
    """Turns the text of one choice into parts, while it grows.

    What comes out, joined, does not depend on how the text was cut into pieces. No text raises. A call is given out
    once it is complete; one that is broken or cut off comes back as content, its markers included.
    """

    def feed(self, text: str) -> list[Part]:
        """The parts that became certain with this text; may be empty."""
        ...

    def finish(self) -> list[Part]:
        """What was held back until the text ended. Nothing is fed after it."""
        ...


class PlainParser:
    """All text is content."""

    def feed(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        return []
