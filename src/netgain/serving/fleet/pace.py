"""How fast an engine finishes requests, from what it reports, so that a client that comes too early is told when to come back."""

from collections import deque

_WINDOW_S = 20.0


class Pace:
    """Finished requests over the last seconds of one engine process's life."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, finished: int) -> None:
        """The engine had finished `finished` requests since its start."""
        self._seen.append((now_s, finished))
        while now_s - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()

    def seconds_per_request(self) -> float | None:
        """The mean time in which one place in the queue becomes free; None while nothing was seen to finish."""
        if len(self._seen) < 2:
            return None
        (start_s, before), (end_s, after) = self._seen[0], self._seen[-1]
        return (end_s - start_s) / (after - before) if after > before and end_s > start_s else None
