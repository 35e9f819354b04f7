"""Text that arrives in pieces, read as if it were whole: a reader that cannot decide yet yields until more has come.

So a grammar is written as plain generators, and what it finds cannot depend on how the text was cut.
"""

import re
from collections.abc import Collection, Generator
from typing import TypeVar

_KEPT_CHARACTERS = 4096

Result = TypeVar("Result")
Reading = Generator[None, None, Result]


class Source:
    """`at` is where the reader stands; it may be set back to any place not yet forgotten."""

    def __init__(self) -> None:
        self.at = 0
        self._text = ""
        self._ended = False

    def add(self, text: str) -> None:
        """More text has come."""
        self._text += text

    def end(self) -> None:
        """No more will come."""
        self._ended = True

    def forget(self) -> None:
        """Drop what was read, now and then, so that a long answer is not kept. Places noted before are void."""
        if self.at > _KEPT_CHARACTERS:
            self._text = self._text[self.at :]
            self.at = 0

    def rest(self) -> str:
        """All that has come and was not read; it counts as read now."""
        rest = self._text[self.at :]
        self.at = len(self._text)
        return rest

    def ends_within(self, spelling: str) -> bool:
        """Whether the whole text ends here, in the middle of this spelling."""
        rest = self._text[self.at :]
        return self._ended and 0 < len(rest) < len(spelling) and spelling.startswith(rest)

    def since(self, start: int) -> str:
        """What was read from `start` on."""
        return self._text[start : self.at]

    def peek(self) -> Reading[str]:
        """The next character; "" at the end of the text."""
        while self.at == len(self._text) and not self._ended:
            yield
        return self._text[self.at : self.at + 1]

    def skip(self, character: str) -> Reading[bool]:
        """Read this character if it is next."""
        found = (yield from self.peek()) == character
        self.at += found
        return found

    def run(self, kind: re.Pattern[str]) -> str:
        """Read what has come of the characters that `kind`, a pattern like `[a-z]*`, matches."""
        match = kind.match(self._text, self.at)
        assert match is not None
        self.at = match.end()
        return match.group()

    def all(self, kind: re.Pattern[str]) -> Reading[str]:
        """Read all characters that `kind` matches, waiting for the first that it does not."""
        found = []
        while (yield from self.peek()) and (piece := self.run(kind)):
            found.append(piece)
        return "".join(found)

    def literal(self, spellings: Collection[str]) -> Reading[str]:
        """Read the longest of the spellings that stands here; "" when none does."""
        while not self._ended:
            here = self._text[self.at : self.at + max(map(len, spellings), default=0)]
            if not any(len(here) < len(spelling) and spelling.startswith(here) for spelling in spellings):
                break
            yield
        found = max((s for s in spellings if self._text.startswith(s, self.at)), key=len, default="")
        self.at += len(found)
        return found
