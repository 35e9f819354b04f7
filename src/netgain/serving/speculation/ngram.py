"""Prompt lookup: what followed the last few tokens the last time they were said probably follows again.

Costs no model, no memory beside a per-request index, and pays where output copies the prompt or itself.
"""

from collections.abc import Sequence

from netgain.serving.engine.protocols import Ask, Draft
from netgain.serving.engine.request import Request

# Child keys are node << 32 | token, so that a step down the index is one lookup of an int.
_TOKEN_BITS = 32


class NgramProposer:
    """Copies what followed the first occurrence of the longest suffix of `lookup_min`..`lookup_max` tokens seen before.

    The first, because it lies in the source that is being copied, and later ones where the copy has strayed already.

    Where the copied stretch reaches the end of the text it goes on through what it has just proposed, so a loop of any
    period yields full drafts. Appending a token costs O(lookup_max); a suffix may overlap its earlier occurrence.
    """

    def __init__(self, k: int, lookup_min: int, lookup_max: int) -> None:
        if k < 1 or not 1 <= lookup_min <= lookup_max:
            raise ValueError(f"need k >= 1 and 1 <= lookup_min <= lookup_max, got {k}, {lookup_min}, {lookup_max}")
        self.k = k
        self.lookup_min = lookup_min
        self.lookup_max = lookup_max
        self._indexes: dict[str, _SuffixIndex] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """Up to min(k, limit) tokens each; an empty draft when nothing matches. Reads only what is new in the tokens."""
        return [self._one(ask) for ask in asks]

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        self._indexes.pop(request.id, None)

    def _one(self, ask: Ask) -> Draft:
        tokens = ask.tokens
        index = self._indexes.get(ask.request.id)
        if index is None or not index.precedes(tokens):
            index = self._indexes[ask.request.id] = _SuffixIndex(self.lookup_min, self.lookup_max)
        index.extend(tokens)
        source = index.continuation
        if source is None:
            return Draft(())
        length = len(tokens)
        drafts: list[int] = []
        for place in range(source, source + min(self.k, ask.limit)):
            drafts.append(tokens[place] if place < length else drafts[place - length])
        return Draft(tuple(drafts))


class _SuffixIndex:
    """A trie of every n-gram up to `longest`, with where its first occurrence ended."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._length = 0
        self._last: int | None = None
        self._children: dict[int, int] = {}
        self._follows = [0]  # per node: where the text went on after its first occurrence; 0 = too short to look up
        self._suffixes: list[int] = []  # nodes of the text's last 1, 2, ... tokens
        self.continuation: int | None = None

    def precedes(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` can be the indexed text grown longer (the last token seen tells a replacement, mostly)."""
        return self._length == 0 or (len(tokens) >= self._length and tokens[self._length - 1] == self._last)

    def extend(self, tokens: Sequence[int]) -> None:
        """Index `tokens` from where the last call ended, and find the continuation of the longest known suffix."""
        children, follows, shortest = self._children, self._follows, self._shortest
        for place in range(self._length, len(tokens)):
            token = tokens[place]
            found: int | None = None
            grown: list[int] = []
            for parent in (0, *self._suffixes[: self._longest - 1]):
                key = parent << _TOKEN_BITS | token
                node = children.get(key)
                if node is None:
                    node = children[key] = len(follows)
                    follows.append(0)
                grown.append(node)
                if len(grown) >= shortest:
                    if follows[node]:
                        found = follows[node]
                    else:
                        follows[node] = place + 1
            self._suffixes = grown
            self.continuation = found
            self._last = token
        self._length = len(tokens)
