"""What drafts may lose: a share of the time and no more, whatever was expected of them."""

SHARE = 0.01  # of the time may be lost to drafts
# Steps' worth of time: what there is at first, and what may be saved up, of that share or of what drafts brought.
FIRST, MOST = 1.0, 4.0


class Allowance:
    """Seconds that drafts may still lose. Time adds a share of itself, a step with drafts what it saved or cost, and while
    there is nothing left there are no drafts: so a loss is followed by a rest in proportion, however it came about."""

    def __init__(self) -> None:
        self._left_s: float | None = None  # None before the first step
        self._wanted_s = 0.0

    @property
    def spent(self) -> bool:
        return self._left_s is not None and self._left_s < 0.0

    def left_s(self, plain_s: float) -> float:
        """Where a step without drafts takes `plain_s`: what a step may take longer, lest one that brings nothing loses more."""
        return FIRST * plain_s if self._left_s is None else self._left_s

    def affords(self, price_s: float, plain_s: float) -> bool:
        """Whether a try at this price is covered; if not, it is saved up for."""
        covered = price_s <= self.left_s(plain_s)
        self._wanted_s = 0.0 if covered else price_s
        return covered

    def stepped(self, seconds: float, saved_s: float, plain_s: float) -> None:
        """A step took `seconds`, which is `saved_s` less (more, if negative) than its tokens take without drafts."""
        room_s = max(MOST * plain_s, self._wanted_s)
        self._left_s = min(room_s, self.left_s(plain_s) + saved_s + SHARE * seconds)
