"""A circuit breaker: after a failure nobody waits for the server again until a probe, in nobody's way, finds it well."""

from enum import StrEnum


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Closed: calls pass. After `failures` failures in a row, open: none do, for `open_s`, twice that after each failed
    probe, at most `longest_open_s`. Then half-open: one probe, and still no calls; its outcome closes or opens.

    Sans I/O: it is told the time and what happened. What calls that began before it opened report later changes nothing.
    """

    def __init__(self, failures: int = 1, open_s: float = 1.0, longest_open_s: float = 60.0) -> None:
        self.state = State.CLOSED
        self.opened = 0  # how many times it opened
        self._failures = failures
        self._open_s = open_s
        self._longest_open_s = longest_open_s
        self._in_a_row = 0
        self._wait_s = open_s
        self._until_s = 0.0

    def allows(self) -> bool:
        """Whether a call may be made now."""
        return self.state is State.CLOSED

    def take_probe(self, now_s: float) -> bool:
        """True once when a probe is due; who gets it must report `probed`."""
        if self.state is not State.OPEN or now_s < self._until_s:
            return False
        self.state = State.HALF_OPEN
        return True

    def succeeded(self) -> None:
        """A call came back."""
        if self.state is State.CLOSED:
            self._in_a_row = 0

    def failed(self, now_s: float) -> None:
        """A call failed, or its time was up."""
        if self.state is not State.CLOSED:
            return
        self._in_a_row += 1
        if self._in_a_row >= self._failures:
            self._open(now_s, self._open_s)

    def probed(self, well: bool, now_s: float) -> None:
        """The probe's outcome."""
        if self.state is not State.HALF_OPEN:
            return
        if well:
            self.state = State.CLOSED
            self._in_a_row = 0
        else:
            self._open(now_s, min(2.0 * self._wait_s, self._longest_open_s))

    def _open(self, now_s: float, wait_s: float) -> None:
        self.state = State.OPEN
        self.opened += 1
        self._wait_s = wait_s
        self._until_s = now_s + wait_s
