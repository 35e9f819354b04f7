"""The way from tokens to text that a client may see: characters are never cut, stop strings end the text without being
seen, and every token's log-probability leaves together with the text of that token."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from netgain.serving.api.logprobs import Entry
from netgain.serving.api.stop import StopMatcher
from netgain.serving.engine.request import TokenLogprobs
from netgain.serving.model.tokenizer import Detokenizer, Tokenizer


class Flowed(NamedTuple):
    """Text that is certain, the entries of the tokens that it completes, and the stop string that ended the answer."""

    text: str
    entries: tuple[Entry, ...] = ()
    stop: str | None = None


class TextFlow:
    """The text of one choice; `continues`: it goes on with another text. Before `min_tokens` tokens no stop string counts.
    With `entries`, text leaves in whole tokens, so that in every piece text and entries say the same; their offsets count
    from `offset`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
        keep: Iterable[str] = (),
        continues: bool = False,
        entries: bool = False,
        offset: int = 0,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, keep, continues)
        self._stops = StopMatcher(stops, include_stop)
        self._min_tokens = min_tokens
        self._count = 0
        self._aligned = _Aligned(offset) if entries else None
        self.is_plain = not stops and not entries

    def push(self, token: int, law: TokenLogprobs | None = None, shown: bool = True) -> Flowed:
        """Add a token; one that is not `shown` adds no text."""
        self._count += 1
        cut = self._detokenizer.cut_by(token) if shown and self._aligned is not None else 0
        certain = self._detokenizer.push((token,)) if shown else ""
        released = self._stops.feed(certain, self._count >= self._min_tokens)
        if self._aligned is None:
            return Flowed(released.text, (), released.stop)
        self._aligned.token(token, law, cut, len(certain), self._detokenizer.holds)
        if released.stop is not None:
            return self._aligned.all(released.text, released.stop)
        return self._aligned.whole_tokens(released.text)

    def plain(self, tokens: Sequence[int]) -> str:
        """Add shown tokens at once; only where `is_plain`: no stop string can match, and nothing is asked of a single token."""
        return self._detokenizer.push(tokens)

    def finish(self) -> Flowed:
        """What was held back at the end: a cut character becomes a replacement mark, and may complete a stop string."""
        released = self._stops.feed(self._detokenizer.finish(), self._count >= self._min_tokens)
        text = released.text if released.stop is not None else released.text + self._stops.finish()
        if self._aligned is None:
            return Flowed(text, (), released.stop)
        return self._aligned.all(text, released.stop)


class _Aligned:
    """Holds released text and entries until they end at the same place."""

    def __init__(self, offset: int) -> None:
        self._certain = self._released = self._given = offset
        self._text = ""
        self._waiting: deque[tuple[Entry, int]] = deque()  # with the place where the token's text ends

    def token(self, token: int, law: TokenLogprobs | None, cut: int, characters: int, holds: int) -> None:
        """A token that made `characters` certain, of which the first `cut` stand before it; it ends behind what it `holds`."""
        entry = Entry(token, law, self._certain + cut)
        self._certain += characters
        self._waiting.append((entry, self._certain + holds))

    def whole_tokens(self, text: str) -> Flowed:
        self._take(text)
        entries, end = [], self._given
        while self._waiting and self._waiting[0][1] <= self._released:
            entry, end = self._waiting.popleft()
            entries.append(entry)
        text, self._text = self._text[: end - self._given], self._text[end - self._given :]
        self._given = end
        return Flowed(text, tuple(entries))

    def all(self, text: str, stop: str | None) -> Flowed:
        self._take(text)
        entries = tuple(entry for entry, _ in self._waiting)
        self._waiting.clear()
        text, self._text = self._text, ""
        return Flowed(text, entries, stop)

    def _take(self, text: str) -> None:
        self._text += text
        self._released += len(text)
