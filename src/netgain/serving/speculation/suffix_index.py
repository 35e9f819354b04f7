"""Where the ending of a text stood before: hash chains over tokens, as a suffix tree would answer for the newest occurrences.

A suffix tree in Python spends some kilobytes and tens of dictionary look-ups per token. Chains of equal anchors (as LZ77
compressors use them) spend two look-ups, give up a text that is evicted for the price of reading it once, and know the
match length of each occurrence, from which counts of continuations follow as in a tree.
"""

from array import array
from collections.abc import Sequence

# A match shorter than the first anchor is not looked for. The second finds long matches whose beginnings are frequent.
ANCHORS = (2, 6)
OCCURRENCES = 48  # of one anchor, the newest, are looked at
ENOUGH = 16  # occurrences that match over the whole depth end the look-up
SEPARATOR = -1  # between texts; no token has this id

# Of one token: its place in the arrays and its share of the dictionaries, whose slots and numbers are most of it (measured
# with tracemalloc, see the tests).
BYTES_PER_TOKEN = 360
BYTES_PER_INDEX = 2048

_BITS = 32
_BASE = 0x9E3779B97F4A7C15
_MODULUS = 0xFFFFFFFFFFFFFFFF
_OUT = pow(_BASE, ANCHORS[1], 1 << 64)


class Match:
    """The end of an earlier occurrence (the position of its last token), and how many tokens of the ending it matches."""

    __slots__ = ("at", "length")

    def __init__(self, at: int, length: int) -> None:
        self.at = at
        self.length = length


class SuffixIndex:
    """Texts, appended token by token; positions count all tokens ever appended, so they stay valid when old texts go."""

    def __init__(self) -> None:
        self._tokens = array("i")
        self._before = (array("q"), array("q"))  # per anchor: where it stood the time before; below `_floor`: nowhere
        self._heads: tuple[dict[int, int], dict[int, int]] = ({}, {})  # per anchor: where it stood last
        self._base = 0  # position of _tokens[0]
        self._floor = 0  # tokens before are evicted, though still in the arrays for a while
        self._run = 0  # tokens since the last separator
        self._rolling = 0

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return self._base + len(self._tokens)

    @property
    def size(self) -> int:
        """Tokens that can be found."""
        return self.end - self._floor

    @property
    def bytes(self) -> int:
        """Memory, an upper estimate."""
        return self.bytes_of(self.size)

    @staticmethod
    def bytes_of(tokens: int) -> int:
        """Memory of an index of so many tokens."""
        return BYTES_PER_INDEX + BYTES_PER_TOKEN * tokens

    def token(self, position: int) -> int:
        """The token at `position`, SEPARATOR behind a text's end."""
        return self._tokens[position - self._base]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the text that is open."""
        short, long = self._heads
        before_short, before_long = self._before
        text, run, rolling = self._tokens, self._run, self._rolling
        last = text[-1] if run else 0
        width = ANCHORS[1]
        position = self.end
        for token in tokens:
            text.append(token)
            run += 1
            # numbers modulo 2**64 that equal texts share; unequal ones that do are told apart when matched
            rolling = (rolling * _BASE + token + 1) & _MODULUS
            if run > width:
                rolling = (rolling - (text[-1 - width] + 1) * _OUT) & _MODULUS
            if run >= 2:
                key = last << _BITS | token
                before_short.append(short.get(key, -1))
                short[key] = position
            else:
                before_short.append(-1)
            if run >= width:
                key = rolling
                before_long.append(long.get(key, -1))
                long[key] = position
            else:
                before_long.append(-1)
            last = token
            position += 1
        self._run, self._rolling = run, rolling

    def close_text(self) -> None:
        """The text is over; what is appended next belongs to another."""
        self._tokens.append(SEPARATOR)
        for before in self._before:
            before.append(-1)
        self._run = self._rolling = 0

    def evict(self, count: int) -> None:
        """Forget the first `count` tokens that are left (separators count)."""
        upto = min(self.end, self._floor + count)
        run = rolling = 0
        width = ANCHORS[1]
        short, long = self._heads
        for position in range(self._floor, upto):
            place = position - self._base
            token = self._tokens[place]
            if token == SEPARATOR:
                run = rolling = 0
                continue
            run += 1
            rolling = (rolling * _BASE + token + 1) & _MODULUS
            if run > width:
                rolling = (rolling - (self._tokens[place - width] + 1) * _OUT) & _MODULUS
            if run >= 2:
                _drop(short, self._tokens[place - 1] << _BITS | token, position)
            if run >= width:
                _drop(long, rolling, position)
        self._floor = upto
        if self._floor - self._base > max(1024, self.size // 2):
            gone = self._floor - self._base
            del self._tokens[:gone]
            for before in self._before:
                del before[:gone]
            self._base = self._floor

    def matches(self, ending: "array[int]", exclude: int = -1) -> list[Match]:
        """Occurrences of at least the last two tokens of `ending`, newest first; `exclude` is where the ending itself
        stands, when it is part of a text here. Match lengths are counted up to the length of `ending`."""
        depth = len(ending)
        found: list[Match] = []
        if depth < ANCHORS[0]:
            return found
        if depth >= ANCHORS[1]:
            self._walk(1, _rolled(ending[-ANCHORS[1] :]), ending, exclude, found)
            if found:
                return found
        self._walk(0, ending[-2] << _BITS | ending[-1], ending, exclude, found)
        return found

    def _walk(self, level: int, key: int, ending: "array[int]", exclude: int, found: list[Match]) -> None:
        text, base, floor = self._tokens, self._base, self._floor
        before = self._before[level]
        depth = len(ending)
        whole = 0
        at = self._heads[level].get(key, -1)
        for _ in range(OCCURRENCES):
            if at < floor:
                return
            place = at - base
            if at != exclude:
                start = place - depth + 1
                if start >= floor - base and text[start : place + 1] == ending:
                    length = depth
                    whole += 1
                else:
                    length = 0
                    lowest = floor - base
                    while length < depth and place - length >= lowest and text[place - length] == ending[-1 - length]:
                        length += 1
                if length >= ANCHORS[level]:
                    found.append(Match(at, length))
                    if whole == ENOUGH:
                        return
            at = before[place]


def _rolled(tokens: "array[int]") -> int:
    rolling = 0
    for token in tokens:
        rolling = (rolling * _BASE + token + 1) & _MODULUS
    return rolling


def _drop(heads: dict[int, int], key: int, position: int) -> None:
    if heads.get(key) == position:
        del heads[key]
