"""When requests have to be over: a heap, in which those of requests that ended stay until they are due."""

import math
from collections.abc import Iterator
from heapq import heappop, heappush


class Deadlines:
    """Seconds of the engine's clock, and the requests they belong to."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    @property
    def next_s(self) -> float:
        """The first one; infinite when there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, at_s: float, request_id: str) -> None:
        heappush(self._heap, (at_s, request_id))

    def due(self, now_s: float) -> Iterator[str]:
        """The requests whose deadline has come, each once."""
        while self._heap and self._heap[0][0] <= now_s:
            yield heappop(self._heap)[1]
