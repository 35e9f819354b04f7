"""What a step writes down: each request's stages, its own cost and stall, draft handoffs, counters."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from netgain.cost.step_cost import StepCost
from netgain.ledger.collector import Collector
from netgain.ledger.records import Handoff, HandoffKind, StepRecord, StepShare
from netgain.ledger.stage import Stage
from netgain.serving.engine.generation import Generation
from netgain.serving.engine.request import EngineStats, TokenLogprobs
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.sequence import SequenceState
from netgain.serving.engine.step_plan import StepPlan, Work

_log = logging.getLogger(__name__)


class StepStamps(NamedTuple):
    """When each part of a step ended, in seconds of the engine's clock, and how long of it the model computed."""

    started_s: float
    drafted_s: float
    scheduled_s: float
    ready_s: float
    executed_s: float
    finished_s: float
    forward_s: float | None = None


class Committed(NamedTuple):
    """What a request got out of a step; `accepted` drafts are part of it (what the end of the text cut off is not). With
    `error` it ends without anything."""

    tokens: tuple[int, ...] = ()
    accepted: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None


class Accounts:
    """Turns plans and stamps into timelines, records and counters. `step_cost` splits own cost from stall once measured."""

    def __init__(self, collector: Collector, scheduler: Scheduler) -> None:
        self.counters = dict.fromkeys(EngineStats.__struct_fields__[8:], 0)
        self.step_cost: StepCost | None = None
        self._collector = collector
        self._scheduler = scheduler
        self._previous_s: float | None = None  # when the step before ended, unless nothing ran since

    def write_down(
        self,
        plan: StepPlan,
        committed: Sequence[Committed],
        drafted: Collection[str],
        stamps: StepStamps,
        generations: Mapping[str, Generation],
    ) -> None:
        """`committed[i]` came out of plan.work[i]; `drafted` are the requests that were asked for drafts.

        Never raises: a fault in accounting costs figures, not answers. Each is counted (netgain_steps_unrecorded), the first
        one logged.
        """
        try:
            self._write_down(plan, committed, drafted, stamps, generations)
        except Exception:
            if self._collector.step_unrecorded():
                _log.exception("a step could not be written down; further faults are only counted")

    def nothing_runs(self) -> None:
        """The time until the next step is nobody's."""
        self._previous_s = None

    def _write_down(
        self,
        plan: StepPlan,
        committed: Sequence[Committed],
        drafted: Collection[str],
        stamps: StepStamps,
        generations: Mapping[str, Generation],
    ) -> None:
        self._waits(plan, stamps, generations)
        shares = []
        splits = self._split(plan, stamps)
        for work, part, split in zip(plan.work, committed, splits, strict=True):
            tokens = part.tokens
            generation = generations[work.sequence.id]
            share = _share(work, len(tokens), split)
            shares.append(share)
            generation.shared(share)
            asked = work.sequence.id in drafted
            if asked:
                generation.timeline.add(Stage.DRAFT, stamps.started_s, stamps.drafted_s)
            # a prefill begins where its cache lookup ended; a plain decode waits for the whole turn
            begin_s = stamps.scheduled_s if work.prefill else stamps.drafted_s if asked else stamps.started_s
            if asked and stamps.ready_s > stamps.scheduled_s:  # its drafts came from a model
                generation.timeline.add(share.stage, begin_s, stamps.scheduled_s)
                generation.timeline.add(Stage.DRAFT, stamps.scheduled_s, stamps.ready_s)
                begin_s = stamps.ready_s
            generation.timeline.add(share.stage, begin_s, stamps.finished_s)
            if tokens and generation.first_token_s is None:
                generation.first_token_s = stamps.finished_s
            self.counters["output_tokens"] += len(tokens)
            if work.drafts:
                self.counters["draft_committed_tokens"] += len(tokens)
                self._handoff(work, part.accepted, stamps)
        if not plan.work:
            return
        self._collector.step(
            StepRecord(
                index=self.counters["steps"],
                started_s=stamps.started_s,
                drafted_s=stamps.drafted_s,
                scheduled_s=stamps.scheduled_s,
                ready_s=stamps.ready_s,
                executed_s=stamps.executed_s,
                finished_s=stamps.finished_s,
                shares=tuple(shares),
                waiting=len(self._scheduler.waiting),
                running=len(self._scheduler.running),
                free_blocks=self._scheduler.pool.available,
                forward_s=stamps.forward_s,
                between_s=None if self._previous_s is None else stamps.started_s - self._previous_s,
            )
        )
        self._previous_s = stamps.finished_s
        self.counters["steps"] += 1

    def _waits(self, plan: StepPlan, stamps: StepStamps, generations: Mapping[str, Generation]) -> None:
        for admission in plan.admitted:
            generation = generations[admission.sequence.id]
            generation.wait_until(stamps.scheduled_s)
            generation.timeline.add(Stage.CACHE_LOOKUP, admission.lookup_start_s, admission.lookup_end_s)
            if admission.first:
                self.counters["prompt_tokens"] += len(generation.request.prompt)
        self.counters["cached_tokens"] = self._scheduler.cached_tokens
        for sequence in plan.preempted:
            self.counters["preemptions"] += 1
            generations[sequence.id].preempted(stamps.started_s)
        worked = {work.sequence.id for work in plan.work}
        for sequence in self._scheduler.running:
            if (
                sequence.id not in worked and sequence.state is not SequenceState.LOADING
            ):  # it holds a place, but the budget went to others
                generations[sequence.id].timeline.add(Stage.QUEUED, stamps.started_s, stamps.finished_s)

    def _split(self, plan: StepPlan, stamps: StepStamps) -> list[tuple[float | None, float | None]]:
        if self.step_cost is None:
            return [(None, None)] * len(plan.work)
        wall_s = stamps.finished_s - stamps.drafted_s - (stamps.ready_s - stamps.scheduled_s)
        return self.step_cost.split(wall_s, [(work.count, work.start) for work in plan.work])

    def _handoff(self, work: Work, accepted: int, stamps: StepStamps) -> None:
        self.counters["draft_steps"] += 1
        self.counters["drafted_tokens"] += work.drafts
        self.counters["accepted_tokens"] += accepted
        self.counters["wasted_draft_tokens"] += work.drafts - accepted
        self._collector.handoff(
            Handoff(
                kind=HandoffKind.DRAFT_VERIFY,
                source="proposer",
                target="target",
                at_s=stamps.ready_s if stamps.ready_s > stamps.scheduled_s else stamps.drafted_s,
                bytes=4 * work.drafts,
                used_tokens=accepted,
                wasted_tokens=work.drafts - accepted,
                waited_s=0.0,
                busy_s=stamps.drafted_s - stamps.started_s + stamps.ready_s - stamps.scheduled_s,
                hidden_s=0.0,
                request_id=work.sequence.id,
            )
        )


def _share(work: Work, committed: int, split: tuple[float | None, float | None]) -> StepShare:
    return StepShare(
        request_id=work.sequence.id,
        stage=Stage.PREFILL if work.prefill else Stage.VERIFY if work.drafts else Stage.DECODE,
        prefill_tokens=work.count if work.prefill else 0,
        decode_tokens=0 if work.prefill else 1,
        draft_tokens=work.drafts,
        committed_tokens=committed,
        context_tokens=work.start + work.count,
        own_s=split[0],
        stall_s=split[1],
    )
