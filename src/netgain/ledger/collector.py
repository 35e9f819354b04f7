"""Where the step loop and the API put their records: bounded memory, cumulative counts, listeners that cannot stop serving."""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from netgain.ledger.records import Handoff, HandoffKind, RequestRecord, StepRecord

R = TypeVar("R")

_log = logging.getLogger(__name__)


class Collector:
    """Takes every record of one process, on the thread of its loop: no locks, and no method raises.

    The newest records stay in `steps`, `handoffs` and `requests`. Listeners are called in order with each good record; one
    that raises (a full disk) is logged the first time, counted in `listener_failures`, and called again with the next
    record. A record with impossible numbers (a negative count, stamps out of order) is logged the first time, counted in
    `refused`, and goes no further, so that the counts only rise.
    """

    def __init__(
        self,
        *,
        on_step: Iterable[Callable[[StepRecord], object]] = (),
        on_handoff: Iterable[Callable[[Handoff], object]] = (),
        on_request: Iterable[Callable[[RequestRecord], object]] = (),
        steps_kept: int = 1024,
        handoffs_kept: int = 4096,
        requests_kept: int = 1024,
    ) -> None:
        self.steps: deque[StepRecord] = deque(maxlen=steps_kept)
        self.handoffs: deque[Handoff] = deque(maxlen=handoffs_kept)
        self.requests: deque[RequestRecord] = deque(maxlen=requests_kept)
        self.refused = 0
        self.listener_failures = 0
        self.steps_unrecorded = 0
        self._on_step = tuple(on_step)
        self._on_handoff = tuple(on_handoff)
        self._on_request = tuple(on_request)
        self._failed_once: set[int] = set()
        self._step_totals = _StepTotals()
        self._handoff_totals = {kind: _HandoffTotals() for kind in HandoffKind}

    def step(self, record: StepRecord) -> None:
        """One turn of the step loop has ended."""
        try:
            fault = self._step_totals.add(record)
        except Exception as error:
            fault = repr(error)
        self._keep(record, fault, self.steps, self._on_step)

    def step_unrecorded(self) -> bool:
        """A step could not be put into a record; counted. True for the first one, which is the one to be logged."""
        self.steps_unrecorded += 1
        return self.steps_unrecorded == 1

    def handoff(self, record: Handoff) -> None:
        """Work or data was passed on (or failed to be)."""
        try:
            fault = self._handoff_totals[record.kind].add(record)
        except Exception as error:
            fault = repr(error)
        self._keep(record, fault, self.handoffs, self._on_handoff)

    def request(self, record: RequestRecord) -> None:
        """A request has ended, well or not."""
        try:
            fault = _request_fault(record)
        except Exception as error:
            fault = repr(error)
        self._keep(record, fault, self.requests, self._on_request)

    def counters(self) -> dict[str, float]:
        """Cumulative counts since construction, flat, for another process to export; `name/kind` for those of handoffs
        that have occurred. `handoff_hidden_s` sums what is known, so it is a lower bound."""
        counts: dict[str, float] = {
            "records_refused": self.refused,
            "listener_failures": self.listener_failures,
            "steps_unrecorded": self.steps_unrecorded,
        }
        counts.update(self._step_totals.named())
        for kind, totals in self._handoff_totals.items():
            if totals.count:
                counts.update({f"{name}/{kind.value}": value for name, value in totals.named().items()})
        return counts

    def _keep(self, record: R, fault: str | None, ring: deque[R], listeners: tuple[Callable[[R], object], ...]) -> None:
        if fault is not None:
            self.refused += 1
            if self.refused == 1:
                _log.error("ledger: a record was refused, and so will others be without further lines: %s", fault)
            return
        ring.append(record)
        for listener in listeners:
            try:
                listener(record)
            except Exception as error:
                self.listener_failures += 1
                if id(listener) not in self._failed_once:
                    self._failed_once.add(id(listener))
                    _log.error("ledger: %r failed and its further failures are only counted: %r", listener, error)


class _StepTotals:
    """Cumulative counts of steps; where a step's wall time went, and how much of it was each request's own. Steps that held
    decodes (and drafts) alone or prompt chunks alone are counted once more, since they show what the machine gives."""

    __slots__ = (
        "between_s",
        "commit_s",
        "decode",
        "decode_only_context",
        "decode_only_s",
        "decode_only_steps",
        "draft_s",
        "drafts",
        "execute_s",
        "forward_s",
        "own_s",
        "prefill",
        "prefill_only_chosen",
        "prefill_only_s",
        "prefill_only_steps",
        "prefill_only_tokens",
        "schedule_s",
        "stall_s",
        "steps",
        "verify_s",
    )

    def __init__(self) -> None:
        self.steps = self.prefill = self.decode = self.drafts = 0
        self.schedule_s = self.draft_s = self.execute_s = self.commit_s = 0.0
        self.own_s = self.stall_s = 0.0
        self.forward_s = self.between_s = self.verify_s = 0.0
        self.decode_only_steps = self.decode_only_context = 0
        self.prefill_only_steps = self.prefill_only_tokens = self.prefill_only_chosen = 0
        self.decode_only_s = self.prefill_only_s = 0.0

    def add(self, record: StepRecord) -> str | None:
        before = record.started_s <= record.drafted_s <= record.scheduled_s <= record.ready_s
        if not (before and record.ready_s <= record.executed_s <= record.finished_s):
            return f"stamps of step {record.index} are out of order"
        forward_s, between_s = record.forward_s or 0.0, record.between_s or 0.0
        if not (forward_s >= 0 and between_s >= 0):
            return f"negative time in step {record.index}: forward {forward_s} s, between {between_s} s"
        prefill = decode = drafts = 0
        own_s = stall_s = 0.0
        for share in record.shares:
            if (
                share.prefill_tokens < 0
                or share.decode_tokens < 0
                or share.draft_tokens < 0
                or share.committed_tokens < 0
            ):
                return f"negative count in step {record.index}: {share}"
            prefill += share.prefill_tokens
            decode += share.decode_tokens
            drafts += share.draft_tokens
            if share.own_s is not None and share.stall_s is not None:
                if not (share.own_s >= 0 and share.stall_s >= 0):
                    return f"negative time in step {record.index}: {share}"
                own_s += share.own_s
                stall_s += share.stall_s
        self.steps += 1
        self.prefill += prefill
        self.decode += decode
        self.drafts += drafts
        self.own_s += own_s
        self.stall_s += stall_s
        self.draft_s += record.drafted_s - record.started_s + record.ready_s - record.scheduled_s
        self.schedule_s += record.scheduled_s - record.drafted_s
        self.execute_s += record.executed_s - record.ready_s
        if drafts:
            self.verify_s += record.executed_s - record.ready_s
        self.forward_s += forward_s
        self.between_s += between_s
        self.commit_s += record.finished_s - record.executed_s
        if not prefill and decode:
            self.decode_only_steps += 1
            self.decode_only_s += record.finished_s - record.started_s
            self.decode_only_context += sum([share.context_tokens for share in record.shares])
        elif prefill and not decode:
            self.prefill_only_steps += 1
            self.prefill_only_s += record.finished_s - record.started_s
            self.prefill_only_tokens += prefill
            self.prefill_only_chosen += sum([share.committed_tokens for share in record.shares])
        return None

    def named(self) -> dict[str, float]:
        return {
            "steps": self.steps,
            "step_prefill_tokens": self.prefill,
            "step_decode_tokens": self.decode,
            "step_draft_tokens": self.drafts,
            "step_draft_s": self.draft_s,
            "step_schedule_s": self.schedule_s,
            "step_execute_s": self.execute_s,
            "step_commit_s": self.commit_s,
            "step_verify_s": self.verify_s,
            "step_forward_s": self.forward_s,
            "step_between_s": self.between_s,
            "step_own_s": self.own_s,
            "step_stall_s": self.stall_s,
            "decode_only_steps": self.decode_only_steps,
            "decode_only_s": self.decode_only_s,
            "decode_only_context_tokens": self.decode_only_context,
            "prefill_only_steps": self.prefill_only_steps,
            "prefill_only_s": self.prefill_only_s,
            "prefill_only_tokens": self.prefill_only_tokens,
            "prefill_only_chosen": self.prefill_only_chosen,
        }


class _HandoffTotals:
    """Cumulative counts of the handoffs of one kind."""

    __slots__ = ("busy_s", "bytes", "count", "failed", "hidden_s", "used", "waited_s", "wasted", "wasted_bytes")

    def __init__(self) -> None:
        self.count = self.failed = self.bytes = self.used = self.wasted = self.wasted_bytes = 0
        self.waited_s = self.busy_s = self.hidden_s = 0.0

    def add(self, record: Handoff) -> str | None:
        hidden_s = record.hidden_s or 0.0
        if not (
            record.bytes >= 0
            and record.used_tokens >= 0
            and record.wasted_tokens >= 0
            and record.wasted_bytes >= 0
            and record.waited_s >= 0
            and record.busy_s >= 0
            and hidden_s >= 0
        ):
            return f"negative number in {record}"
        self.count += 1
        self.failed += record.failed
        self.bytes += record.bytes
        self.used += record.used_tokens
        self.wasted += record.wasted_tokens
        self.wasted_bytes += record.wasted_bytes
        self.waited_s += record.waited_s
        self.busy_s += record.busy_s
        self.hidden_s += hidden_s
        return None

    def named(self) -> dict[str, float]:
        return {
            "handoffs": self.count,
            "handoffs_failed": self.failed,
            "handoff_bytes": self.bytes,
            "handoff_used_tokens": self.used,
            "handoff_wasted_tokens": self.wasted,
            "handoff_wasted_bytes": self.wasted_bytes,
            "handoff_waited_s": self.waited_s,
            "handoff_busy_s": self.busy_s,
            "handoff_hidden_s": self.hidden_s,
        }


def _request_fault(record: RequestRecord) -> str | None:
    first_s = record.received_s if record.first_token_s is None else record.first_token_s
    if not record.received_s <= first_s <= record.finished_s:
        return f"stamps of request {record.request_id} are out of order"
    cached = record.cached_tokens or 0
    if min(record.prompt_tokens, cached, record.output_tokens, record.preemptions or 0) < 0:
        return f"negative count in request {record.request_id}"
    if cached > record.prompt_tokens:
        return f"request {record.request_id} has more cached tokens than prompt tokens"
    if not all(seconds >= 0 for seconds in (*record.stages.values(), *(record.ttft_stages or {}).values())):
        return f"negative stage time in request {record.request_id}"
    return None
