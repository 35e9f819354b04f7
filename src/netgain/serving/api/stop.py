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
        self._stops = tuple(stops)
        self._include = include
        self._held = ""

    def feed(self, piece: str, armed: bool = True) -> Released:
        """Add text. What is released never contains any part of a stop string that matched, unless it is to be included.
        A match that this text completes while not `armed` is none."""
        if not self._stops:
            return Released(piece, None)
        text = self._held + piece
        match = self._first_match(text, len(self._held)) if armed else None
        if match is not None:
            begin, stop = match
            self._held = ""
            return Released(text[: begin + len(stop)] if self._include else text[:begin], stop)
        hold = self._possible_start(text)
        self._held = text[len(text) - hold :]
        return Released(text[: len(text) - hold], None)

    def finish(self) -> str:
        """The text ended: what was held back after all belongs to it."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str, seen: int) -> tuple[int, str] | None:
        """Where the stop string that is complete first, behind the `seen` characters, begins; and that string."""
        found = [
            (at + len(stop), at, stop)
            for stop in self._stops
            if (at := text.find(stop, max(0, seen - len(stop) + 1))) >= 0
        ]
        return min(found)[1:] if found else None

    def _possible_start(self, text: str) -> int:
        """The length of the longest end of `text` that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
