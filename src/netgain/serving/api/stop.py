"""Stop strings in a growing text: nothing that belongs, or may yet belong, to a stop string is ever given out."""

from collections.abc import Sequence
from typing import NamedTuple


class Released(NamedTuple):
    """Text that may be sent, and the stop string that ended the answer (nothing more comes then)."""

    text: str
    stop: str | None


class StopMatcher:
    """Feed text in pieces of any size; the result does not depend on how it was cut. The match that is complete first
    counts, and of several complete at the same character the longest. With `include`, the answer keeps the stop string."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self._stops = tuple(_Stop(stop) for stop in stops)
        self._include = include
        self._held = ""

    def feed(self, piece: str, armed: bool = True) -> Released:
        """Add text. What is released never contains any part of a stop string that matched, unless it is to be included.
        A match that this text completes while not `armed` is none."""
        if not self._stops:
            return Released(piece, None)
        # the one that is complete first, and of several the longest
        found = [(end, -len(stop.text), stop.text) for stop in self._stops if (end := stop.feed(piece)) is not None]
        text = self._held + piece
        if found and armed:
            end, _, match = min(found)
            end += len(self._held)
            self._held = ""
            return Released(text[:end] if self._include else text[: end - len(match)], match)
        hold = max(stop.reached for stop in self._stops)
        self._held = text[len(text) - hold :]
        return Released(text[: len(text) - hold], None)

    def finish(self) -> str:
        """The text ended: what was held back after all belongs to it."""
        held, self._held = self._held, ""
        return held


class _Stop:
    """One stop string, and how many of its first characters the text so far ends with: `reached`, less than all. Found by
    Knuth, Morris and Pratt's method, whose cost per character does not depend on the lengths."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.reached = 0
        self._borders = [0, 0]  # by length of a beginning: the longest shorter one that it ends with

    def feed(self, piece: str) -> int | None:
        """How much of `piece` there was when the stop string was complete for the first time; None: it is not."""
        text, reached, complete = self.text, self.reached, None
        if not reached and text[0] not in piece:
            return None
        for count, letter in enumerate(piece, start=1):
            while reached and text[reached] != letter:
                reached = self._border(reached)
            if text[reached] == letter:
                reached += 1
            if reached == len(text):
                complete = complete or count
                reached = self._border(reached)
        self.reached = reached
        return complete

    def _border(self, length: int) -> int:
        text, borders = self.text, self._borders
        while len(borders) <= length:
            letter, border = text[len(borders) - 1], borders[-1]
            while border and text[border] != letter:
                border = borders[border]
            borders.append(border + (text[border] == letter))
        return borders[length]
