"""How old KV may be that is used, counted from when it was first computed."""

import math
import time
from collections.abc import Callable

CLOCKS_DIFFER_S = 300.0  # what is dated further in the future has no known age


class Retention:
    """Dates are whole Unix seconds, as stored objects have them. `seconds` None: no age is too old."""

    def __init__(self, seconds: float | None = None, unix_s: Callable[[], float] = time.time) -> None:
        self.seconds = seconds
        self._unix_s = unix_s

    def now(self) -> int:
        """The date of what is computed now."""
        return int(self._unix_s())

    def dates(self) -> tuple[float, float]:
        """The oldest and the newest date of what may be used now."""
        if self.seconds is None:
            return -math.inf, math.inf
        now_s = self._unix_s()
        return now_s - self.seconds, now_s + CLOCKS_DIFFER_S

    def allows(self, dated: int) -> bool:
        """Whether KV of that date may be used now."""
        oldest, newest = self.dates()
        return oldest <= dated <= newest
