"""Suffix decoding (Oliaro et al. 2024): what most often followed this ending, in this request or in finished answers.

Longer matches earn longer drafts, and a draft ends where its continuation is no longer likely enough.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from netgain.serving.engine.protocols import Ask, Draft
from netgain.serving.engine.request import Request
from netgain.serving.speculation.suffix_index import ANCHORS, SEPARATOR, Match, SuffixIndex


class SuffixOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`factor` drafts per matched token, each at least `min_probability` likely given the match; matches are looked for up
    to `depth` tokens. All indexes together take at most `memory_bytes`. `shared`: finished answers serve later requests
    (of the same salt)."""

    factor: float = 1.0
    min_probability: float = 0.1
    depth: int = 32
    memory_bytes: int = 64 << 20
    shared: bool = True


DEFAULTS = SuffixOptions()


class _Continuation(NamedTuple):
    """A draft and the number of its tokens that are expected to be accepted, going by the counts."""

    tokens: tuple[int, ...]
    score: float


NOTHING = _Continuation((), 0.0)


class SuffixProposer:
    """One index per running request over prompt and output, one per salt over finished outputs.

    For every length of match, the most frequent continuation is followed and scored by the sum of its probabilities;
    the best over all lengths, and over both indexes, is proposed. A copy that reaches the end of the text goes on through
    what it has just proposed. What one tenant's requests said is never looked up for another: a draft that another's
    output made possible would show in the response time.

    When memory runs out, the oldest finished answers go first, then new requests remain without an index of their own.
    """

    def __init__(self, k: int, options: SuffixOptions = DEFAULTS) -> None:
        if k < 1 or not options.factor > 0 or not 0 < options.min_probability <= 1 or options.depth < ANCHORS[0]:
            raise ValueError(f"need k >= 1, factor > 0, 0 < min_probability <= 1 and depth >= 2, got {k} and {options}")
        self.k = k
        self.options = options
        self._own: dict[str, SuffixIndex] = {}
        self._shared: dict[bytes, SuffixIndex] = {}
        self._finished: deque[tuple[bytes, int]] = (
            deque()
        )  # salt and length of what is in the shared indexes, oldest first
        self._shared_bytes = 0
        self._own_bytes = 0

    @property
    def bytes(self) -> int:
        """What all indexes take."""
        return self._own_bytes + self._shared_bytes

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._one(ask) for ask in asks]

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        """What was said may be said again, to whom it was said."""
        own = self._own.pop(request.id, None)
        if own is not None:
            self._own_bytes -= own.bytes
        output = tokens[len(request.prompt) :]
        if not self.options.shared or not request.speculate or len(output) <= ANCHORS[0]:
            return
        index = self._shared.get(request.salt)
        if index is None:
            index = self._shared[request.salt] = SuffixIndex()
            self._shared_bytes += index.bytes
        self._shared_bytes -= index.bytes
        index.extend(output)
        index.close_text()
        self._shared_bytes += index.bytes
        self._finished.append((request.salt, len(output) + 1))
        self._make_room(0)

    def _one(self, ask: Ask) -> Draft:
        limit = min(self.k, ask.limit)
        tokens = ask.tokens
        if limit < 1 or len(tokens) < ANCHORS[0]:
            return Draft(())
        ending = array("i", tokens[-self.options.depth :])
        best = NOTHING
        own = self._own_index(ask)
        if own is not None:
            found = own.matches(ending, exclude=own.end - 1)
            if found:
                best = _best(own, found, limit, self.options, goes_on=True)
        shared = self._shared.get(ask.request.salt)
        if shared is not None and best.score < limit:
            found = shared.matches(ending)
            if found:
                other = _best(shared, found, limit, self.options, goes_on=False)
                if other.score > best.score:
                    best = other
        return Draft(best.tokens)

    def _own_index(self, ask: Ask) -> SuffixIndex | None:
        """The request's own index, up to date; None when there is no room for it."""
        own = self._own.get(ask.request.id)
        known = 0 if own is None else own.end
        if own is None or known > len(ask.tokens):
            own, known = SuffixIndex(), 0
        more = ask.tokens[known:]
        if not more:
            return own
        self._own_bytes -= own.bytes if known else 0
        grown = SuffixIndex.bytes_of(len(ask.tokens))
        if not self._make_room(grown):
            self._own.pop(ask.request.id, None)
            return None
        own.extend(more)
        self._own[ask.request.id] = own
        self._own_bytes += own.bytes
        return own

    def _make_room(self, more: int) -> bool:
        """Let the oldest finished answers go until `more` bytes fit; False when they never do."""
        budget = self.options.memory_bytes - more
        while self.bytes > budget and self._finished:
            salt, length = self._finished.popleft()
            index = self._shared[salt]
            self._shared_bytes -= index.bytes
            index.evict(length)
            if index.size:
                self._shared_bytes += index.bytes
            else:
                del self._shared[salt]
        return self.bytes <= budget


def _best(
    index: SuffixIndex, found: Sequence[Match], limit: int, options: SuffixOptions, *, goes_on: bool
) -> _Continuation:
    """The best-scored continuation over all match lengths, the longer match among equals."""
    best = NOTHING
    for length in sorted({match.length for match in found}, reverse=True):
        budget = min(limit, int(length * options.factor))
        if budget <= best.score:  # shorter matches earn no more
            break
        live = [match.at for match in found if match.length >= length]
        candidate = _follow(index, live, budget, options.min_probability, goes_on)
        if candidate.score > best.score:
            best = candidate
    return best


def _follow(index: SuffixIndex, live: list[int], budget: int, least: float, goes_on: bool) -> _Continuation:
    """Follow the most frequent token behind the positions `live` (newest first), the oldest among equals."""
    total = len(live)
    end = index.end
    drafts: list[int] = []
    score = 0.0
    for step in range(1, budget + 1):
        following: dict[int, list[int]] = {}
        for at in live:
            place = at + step
            if place < end:
                token = index.token(place)
            elif goes_on:
                token = drafts[place - end]
            else:
                continue
            if token != SEPARATOR:
                following.setdefault(token, []).append(at)
        if not following:
            break
        most = max(map(len, following.values()))
        probability = most / total
        if probability < least:
            break
        # of equals, the one whose first occurrence is the oldest lies in the source that is being copied
        token = min(
            (token for token, places in following.items() if len(places) == most), key=lambda t: following[t][-1]
        )
        drafts.append(token)
        score += probability
        live = following[token]
    return _Continuation(tuple(drafts), score)
