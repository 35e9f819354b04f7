"""What is known of asking tiers and of the links to them: what is measured for the first time, and what should be again."""

import statistics
from collections import deque
from collections.abc import Iterable


class Lookups:
    """What it takes to find out where KV is; after `every_s` without a question one is worth it, to learn that."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._took_s: deque[float] = deque(maxlen=16)
        self._asked_s = float("-inf")
        self._just_asked = False

    def worth(self, compute_s: float, now_s: float) -> bool:
        """Whether to ask, for what would take so long to compute."""
        return (
            not self._took_s or compute_s >= statistics.median(self._took_s) or now_s - self._asked_s >= self._every_s
        )

    def asked(self, now_s: float) -> None:
        self._asked_s, self._just_asked = now_s, True

    def answered(self, seconds: float) -> None:
        self._took_s.append(seconds)

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
