"""What a model takes to draft: so much for every draft of the longest chain, and so much for every token that it had not read."""

FALLS, RISES = 0.5, 0.1  # weights of a shorter and of a longer time in the running figures
GUESS = 0.5  # of a step without drafts, for one draft, before there was any
ROWS = 32  # tokens that are read in the time of one draft, before any were


class DraftTime:
    """Running figures, in seconds."""

    def __init__(self) -> None:
        self._each_s: float | None = None
        self._sure = False  # whether drafts were made without reading much
        self._row_s: float | None = None
        self._unread = 0

    def each_s(self, plain_s: float) -> float:
        """One draft for every request of a batch whose steps take `plain_s` without."""
        return GUESS * plain_s if self._each_s is None else self._each_s

    def of(self, depth: int, unread: int, plain_s: float) -> float:
        each_s = self.each_s(plain_s)
        return depth * each_s + unread * (each_s / ROWS if self._row_s is None else self._row_s)

    def reads(self, unread: int) -> None:
        """The next drafts are made after reading so many tokens, beyond those of a step or two."""
        self._unread = unread

    def took(self, depth: int, seconds: float) -> None:
        unread, self._unread = self._unread, 0
        if not unread:
            each_s = seconds / depth
            self._each_s = _moved(self._each_s, each_s) if self._sure and self._each_s is not None else each_s
            self._sure = True
        elif self._sure and self._each_s is not None:
            row_s = max(0.0, seconds - depth * self._each_s) / unread
            self._row_s = row_s if self._row_s is None else _moved(self._row_s, row_s)
        else:
            self._each_s = seconds / (depth + unread / ROWS)


def _moved(before: float, now: float) -> float:
    return before + (FALLS if now < before else RISES) * (now - before)
