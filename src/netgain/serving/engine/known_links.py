"""What is known of asking tiers and of the links to them: what is measured for the first time, and what should be again."""

import statistics
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from netgain.ledger.clock import Clock

_SKIPPED_AT_MOST = 16


class Lookups:
    """What it takes to find out where KV is, and how often something is found; after `every_s` without a question, or
    _SKIPPED_AT_MOST requests without one, a question is worth it to learn that."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._took_s: deque[float] = deque(maxlen=16)
        self._held_s: deque[float] = deque(maxlen=16)
        self._found: deque[bool] = deque(maxlen=64)
        self._asked_s = float("-inf")
        self._skipped = 0
        self._just_asked = False

    def worth(self, compute_s: float, now_s: float) -> bool:
        """Whether to ask, for what would take so long to compute: that much is saved at most, as often as something is found."""
        took_s = max((statistics.median(known) for known in (self._took_s, self._held_s) if known), default=0.0)
        often = (sum(self._found) + 0.5) / (len(self._found) + 1)
        known = self._skipped < _SKIPPED_AT_MOST and now_s - self._asked_s < self._every_s
        if known and compute_s * often < took_s:
            self._skipped += 1
            return False
        return True

    def asked(self, now_s: float) -> None:
        self._asked_s, self._skipped, self._just_asked = now_s, 0, True

    def answered(self, seconds: float, found: bool) -> None:
        """Tiers took `seconds` to say whether they have something."""
        self._took_s.append(seconds)
        self._found.append(found)

    @contextmanager
    def holding(self, clock: Clock, most_s: float) -> Iterator[float]:
        """A step is held back for an answer, until the time given at the most: the way to the tiers' thread and back is in it."""
        begun_s = clock.now()
        try:
            yield begun_s + most_s
        finally:
            self._held_s.append(clock.now() - begun_s)

    def near(self, within_s: float) -> bool:
        """Whether something was asked since this was called last, and answers come within that time."""
        asked, self._just_asked = self._just_asked, False
        return asked and bool(self._took_s) and statistics.median(self._took_s) <= within_s


class KnownLinks:
    """Tiers by their numbers. A link that nobody uses is measured again after `every_s`."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._sampled_s: dict[int, float] = {}
        self._learning: set[int] = set()

    def learns(self, tiers: Iterable[int]) -> None:
        """A load begins that is the first from some of these."""
        self._learning.update(tiers)

    def learning(self, tiers: Iterable[int]) -> bool:
        """Whether another load learns what one of these costs."""
        return not self._learning.isdisjoint(tiers)

    def learnt(self, tiers: Iterable[int]) -> None:
        self._learning.difference_update(tiers)

    def sampled(self, tiers: Iterable[int], now_s: float) -> None:
        """Something was read from these."""
        self._sampled_s.update(dict.fromkeys(tiers, now_s))

    def remeasures(self, tier: int, now_s: float) -> bool:
        """Whether a link thought too slow, which may have become faster, should be read a little from now, in nobody's way."""
        due = now_s - self._sampled_s.setdefault(tier, now_s) > self._every_s
        if due:
            self._sampled_s[tier] = now_s
        return due
