"""Finished requests on their way to a tracing backend: a bounded queue and a thread, so that serving never waits for it."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from netgain.ledger.interval import Interval
from netgain.ledger.records import RequestRecord

QUEUE_REQUESTS = 2048
QUEUE_INTERVALS = 200_000  # about 20 MB: what waits is bounded in memory, too
BATCH_REQUESTS = 64
COLLECT_S = 0.5  # requests that end within this time share an export

_log = logging.getLogger(__name__)


class TracedChoice(msgspec.Struct, frozen=True):
    """One choice of a request: its record, and the intervals that tile it."""

    record: RequestRecord
    intervals: Sequence[Interval]


class TracedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request. Stamps are the host's monotonic seconds; `parent` holds the values of the headers
    `traceparent` and `tracestate` as they came, `asked` what the request asked for, by attribute name. A prompt that
    several choices share is counted once; None is unknown."""

    request_id: str
    operation: str
    model: str
    received_s: float
    finished_s: float
    choices: tuple[TracedChoice, ...]
    prompt_tokens: int
    cached_tokens: int | None
    traceparent: tuple[str, ...] = ()
    tracestate: tuple[str, ...] = ()
    asked: Mapping[str, str | int | float | bool]
    error_type: str | None = None
    error: str | None = None


class Exported(msgspec.Struct, frozen=True):
    """What one export did: requests left out by sampling, and whether the backend took the others."""

    unsampled: int
    delivered: bool


class Tracing:
    """Takes requests from the thread that serves; `export` runs on a thread of its own and may block or raise.

    What finds the queue full or cannot be delivered is dropped and counted, never kept for later and never raised.
    """

    def __init__(
        self,
        export: Callable[[Sequence[TracedRequest]], Exported],
        close_export: Callable[[], object] = lambda: None,
        *,
        queue_requests: int = QUEUE_REQUESTS,
        flush_s: float = 2.0,
    ) -> None:
        self._export = export
        self._close_export = close_export
        self._limit = queue_requests
        self._flush_s = flush_s
        self._waiting: deque[TracedRequest] = deque()
        self._waiting_intervals = 0
        self._change = threading.Condition()
        self._closing = False
        self._exported = self._unsampled = self._dropped_full = self._dropped_failed = 0
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="netgain-tracing", daemon=True)
        self._thread.start()

    def finished(self, request: TracedRequest) -> None:
        """A request has ended. Returns at once."""
        size = sum(len(choice.intervals) for choice in request.choices)
        with self._change:
            if len(self._waiting) >= self._limit or self._waiting_intervals + size > QUEUE_INTERVALS or self._closing:
                self._dropped_full += 1
                return
            self._waiting.append(request)
            self._waiting_intervals += size
            self._change.notify()

    def take(self, make: Callable[[], TracedRequest]) -> None:
        """As `finished`, for a request that is yet to be put together; a fault in that costs the trace alone."""
        try:
            request = make()
        except Exception as error:
            with self._change:
                self._dropped_failed += 1
            if not self._failing:
                self._failing = True
                _log.error("tracing: a request could not be put together (%r); further losses are only counted", error)
            return
        self.finished(request)

    def counters(self) -> dict[str, int]:
        """Cumulative counts of requests by what became of their trace."""
        return {
            "traces_exported": self._exported,
            "traces_unsampled": self._unsampled,
            "traces_dropped": self._dropped_full + self._dropped_failed,
        }

    def close(self) -> None:
        """Deliver what waits, for at most `flush_s`; the rest is dropped. May be called twice."""
        with self._change:
            if self._closing:
                return
            self._closing = True
            self._change.notify()
        self._thread.join(self._flush_s)
        self._close_export()  # ends a delivery that still waits
        with self._change:
            left = len(self._waiting)
            self._waiting.clear()
            self._waiting_intervals = 0
            self._dropped_failed += left
        if left or self._thread.is_alive():
            _log.warning("tracing: %d traces were not delivered within %g s and are lost", left, self._flush_s)

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._waiting and not self._closing:
                    self._change.wait()
                if not self._waiting:
                    return
                self._change.wait_for(lambda: self._closing, COLLECT_S)
            while batch := self._take():
                self._deliver(batch)

    def _take(self) -> list[TracedRequest]:
        with self._change:
            batch = [self._waiting.popleft() for _ in range(min(BATCH_REQUESTS, len(self._waiting)))]
            self._waiting_intervals -= sum(len(choice.intervals) for request in batch for choice in request.choices)
        return batch

    def _deliver(self, batch: list[TracedRequest]) -> None:
        try:
            done = self._export(batch)
            reason: object = "it was not taken"
        except Exception as error:
            done, reason = Exported(0, False), repr(error)
        sampled = len(batch) - done.unsampled
        self._unsampled += done.unsampled
        if done.delivered:
            self._exported += sampled
            if self._failing and sampled:
                _log.info("tracing: traces are delivered again")
                self._failing = False
            return
        with self._change:
            self._dropped_failed += sampled
        if not self._failing:
            self._failing = True
            _log.error("tracing: a batch of %d traces is lost, %s; further losses are only counted", sampled, reason)
