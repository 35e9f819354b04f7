"""Speculation with drafts made of text, predicted by replaying a proposer over recorded outputs: what every such technique
shares."""

import heapq
import time
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from netgain.cost.step_cost import StepCost
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.prediction import Considered, Prediction, Setting
from netgain.errors import UsageError
from netgain.ledger.records import DraftCounts, RequestRecord
from netgain.ledger.stage import Stage
from netgain.measuring.client.record import ClientRecord
from netgain.serving.engine.protocols import Ask, Draft, Proposer
from netgain.serving.engine.request import Request
from netgain.serving.speculation.replay import ReplayStep, ReplayTrace, replay

DRAFTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
RESAMPLES = 1000
RELIEVES = "decode steps: several tokens are committed per pass over the weights"
MUST_REPORT = (
    "tokens committed per step",
    "acceptance per draft position",
    "verify and draft time",
    "time per output token",
    "output tokens per second",
    "KV memory taken from other requests (none: drafts use the request's own blocks)",
)


def cannot_judge_copies(synthetic_text: bool) -> str | None:
    """Why no workload with made-up text can show what copies are worth."""
    if not synthetic_text:
        return None
    return (
        "it cannot be judged on synthetic text: what is copied depends on what the texts say, and this workload "
        "has only their lengths and shared beginnings (record with --with-text to judge it)"
    )


def cannot_replay(facts: Facts) -> str | None:
    """Why nothing can be predicted from these records, or None."""
    if reason := cannot_judge_copies(facts.synthetic_text):
        return reason
    if not any(_replayable(record) for record in facts.records):
        return "no recorded request shows its token ids and at least two output tokens, so there is nothing to replay"
    if facts.step_cost is None:
        return f"the cost of a wider step is not known ({facts.step_cost_missing or 'not measured'})"
    if not measured_drafts(facts.step_cost):
        return "the engine measured steps of one token only, so the cost of verifying drafts is not known"
    return None


def predict_by_replay(
    technique: str, facts: Facts, settings: Sequence[tuple[Setting, Proposer]], also_not_covered: Sequence[str] = ()
) -> Prediction:
    """Replay every setting's proposer over the recorded outputs and charge each step what the engine measured it to cost."""
    cost = facts.step_cost
    if cost is None:
        raise UsageError(f"{technique} speculation cannot be predicted without a measured step cost")
    chosen = [record for record in facts.records if _replayable(record)]
    pool = [(record, record.server) for record in chosen if record.server is not None]
    outcomes = [_predict_setting(facts, cost, pool, setting, proposer) for setting, proposer in settings]
    best = max(outcomes, key=lambda outcome: outcome.net_s)
    low, high = bounds(best.ratios)
    return Prediction(
        technique=technique,
        setting=best.setting,
        off_is_better=best.net_s <= 0.0,
        speedup_e2e=float(np.median(best.ratios)),
        low=low,
        high=high,
        speedup_tpot=float(np.median(best.token_ratios)) if len(best.token_ratios) else None,
        speedup_mean=best.speedup_mean,
        saved_s=best.saved_s,
        spent_s=best.spent_s,
        net_s=best.net_s,
        committed_per_step=best.committed_per_step,
        drafts=best.drafts,
        considered=tuple(outcome.considered() for outcome in sorted(outcomes, key=lambda o: -o.net_s)),
        basis=(
            f"shadow replay over {len(pool)} recorded outputs, step cost {facts.step_cost_basis}, "
            f"{len(outcomes)} settings compared on the same outputs"
        ),
        not_covered=(*not_covered(facts, cost), *also_not_covered),
    )


def _replayable(record: ClientRecord) -> bool:
    server = record.server
    return (
        record.ok
        and server is not None
        and server.prompt_ids is not None
        and server.output_ids is not None
        and len(server.output_ids) >= 2
        and server.ttft_stages is not None
    )


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One setting over all requests; `ratios` are predicted end-to-end speedups per request, `token_ratios` per token."""

    setting: Setting
    ratios: NDArray[np.float64]
    token_ratios: NDArray[np.float64]
    speedup_mean: float
    saved_s: dict[Stage, float]
    spent_s: dict[Stage, float]
    net_s: float
    committed_per_step: float | None
    drafts: DraftCounts

    def considered(self) -> Considered:
        return Considered(
            setting=self.setting,
            net_s=self.net_s,
            speedup_e2e=float(np.median(self.ratios)),
            committed_per_step=self.committed_per_step,
        )


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted seconds of one request after its first token, by what they are spent on."""

    decode_s: float
    verify_s: float
    draft_s: float
    other_s: float


def _predict_setting(
    facts: Facts,
    cost: StepCost,
    pool: Sequence[tuple[ClientRecord, RequestRecord]],
    setting: Setting,
    proposer: Proposer,
) -> _Outcome:
    began = time.process_time()
    traces = _replay_in_order([server for _, server in pool], proposer)
    steps = sum(len(trace.steps) for trace in traces)
    draft_s = (time.process_time() - began) / max(1, steps)
    widths = [1.0 + sum(step.drafted for step in trace.steps) / max(1, len(trace.steps)) for trace in traces]
    mean_width = float(np.mean(widths))
    drafts = DraftCounts()
    before, after, ratios, token_ratios = [], [], [], []
    for (record, server), trace in zip(pool, traces, strict=True):
        drafts.merge(trace.counts)
        now = decode_part(server)
        then = _charge(now, trace.steps, server, cost, facts.concurrency, mean_width, draft_s)
        before.append(now)
        after.append(then)
        spent_now, spent_then = total(now), total(then)
        ratios.append(record.e2e_s / max(1e-9, record.e2e_s - spent_now + spent_then))
        token_ratios.append(spent_now / max(1e-9, spent_then))
    count = len(pool)
    gone = sum(now.decode_s - then.decode_s for now, then in zip(before, after, strict=True)) / count
    other = sum(now.other_s - then.other_s for now, then in zip(before, after, strict=True)) / count
    spent = {
        Stage.VERIFY: sum(then.verify_s for then in after) / count,
        Stage.DRAFT: sum(then.draft_s for then in after) / count,
    }
    net_s = gone + other - sum(spent.values())
    whole = sum(record.e2e_s for record, _ in pool) / count
    return _Outcome(
        setting=setting,
        ratios=np.array(ratios),
        token_ratios=np.array(token_ratios),
        speedup_mean=whole / max(1e-9, whole - net_s),
        saved_s={Stage.DECODE: gone, Stage.UNATTRIBUTED: other},
        spent_s=spent,
        net_s=net_s,
        committed_per_step=sum(trace.committed for trace in traces) / steps if steps else None,
        drafts=drafts,
    )


class _EndsLater:
    """The proposer under it hears of a request's end when that end was recorded, not when its replay is over."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self._ends: list[tuple[float, int, Request, tuple[int, ...]]] = []
        self.finished_s = 0.0  # of the request that is being replayed

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        return self._proposer.propose(asks)

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        heapq.heappush(self._ends, (self.finished_s, len(self._ends), request, tuple(tokens)))

    def until(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            _, _, request, tokens = heapq.heappop(self._ends)
            self._proposer.end(request, tokens)


def _replay_in_order(servers: Sequence[RequestRecord], proposer: Proposer) -> list[ReplayTrace]:
    """In the order of arrival; what a proposer learns from finished requests it knows for those that arrived after."""
    later = _EndsLater(proposer)
    traces: dict[int, ReplayTrace] = {}
    for index in sorted(range(len(servers)), key=lambda index: servers[index].received_s):
        server = servers[index]
        later.until(server.received_s)
        later.finished_s = server.finished_s
        prompt, output = server.prompt_ids or (), server.output_ids or ()
        traces[index] = replay(prompt, output, later, limit(server), name=f"{index}")
    return [traces[index] for index in range(len(servers))]


def limit(server: RequestRecord) -> int:
    """The output limit the request ran under, as far as its record tells: reached, or at least one more."""
    return server.output_tokens if server.finish_reason == "length" else server.output_tokens + 1


def decode_part(server: RequestRecord) -> _Parts:
    """Seconds after the first token, as recorded."""
    until_first = server.ttft_stages or {}
    rest = {stage: seconds - until_first.get(stage, 0.0) for stage, seconds in server.stages.items()}
    decode_s = max(0.0, rest.pop(Stage.DECODE, 0.0))
    return _Parts(decode_s=decode_s, verify_s=0.0, draft_s=0.0, other_s=max(0.0, sum(rest.values())))


def total(parts: _Parts) -> float:
    """Seconds after the first token."""
    return parts.decode_s + parts.verify_s + parts.draft_s + parts.other_s


def _charge(
    now: _Parts,
    steps: Sequence[ReplayStep],
    server: RequestRecord,
    cost: StepCost,
    concurrency: int,
    mean_width: float,
    draft_s: float,
) -> _Parts:
    """What the same output costs in `steps`: the recorded mean decode step times how much dearer a wider one was measured.

    Alone in the batch a step has its own width; among neighbours all have the mean width (a mean-field estimate).
    """
    ordinary = max(1, server.output_tokens - 1)
    step_s, other_s = now.decode_s / ordinary, now.other_s / ordinary
    done = 1
    decode_s = verify_s = 0.0
    for step in steps:
        width = 1.0 + step.drafted if concurrency == 1 else mean_width
        seconds = step_s * relative_cost(cost, concurrency, width, server.prompt_tokens + done)
        if step.drafted:
            verify_s += seconds
        else:
            decode_s += seconds
        done += step.committed
    return _Parts(decode_s=decode_s, verify_s=verify_s, draft_s=draft_s * len(steps), other_s=other_s * len(steps))


def relative_cost(cost: StepCost, batch: int, width: float, context: int) -> float:
    """Measured cost of a step of `width` tokens per sequence over one of a single token; in proportion between integers."""
    one = cost.verify(batch, 1, context).seconds
    whole = int(width)
    low = cost.verify(batch, whole, context).seconds
    if whole != width:
        low += (width - whole) * (cost.verify(batch, whole + 1, context).seconds - low)
    return low / one


def measured_drafts(cost: StepCost) -> tuple[int, ...]:
    """The draft lengths whose verification was measured; others are not considered, for a cost is never extrapolated."""
    widest = max(point.tokens for point in cost.points)
    return tuple(k for k in DRAFTS if k + 1 <= widest)


def bounds(ratios: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """95 % bounds of the median over the choice of prompts."""
    if len(ratios) < 3:
        return None, None
    drawn = np.random.default_rng(0).choice(ratios, size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(low), float(high)


def not_covered(facts: Facts, cost: StepCost) -> tuple[str, ...]:
    said = [
        "the setting is chosen and predicted on the same outputs, which flatters it a little",
        "first-token time is taken as unchanged",
    ]
    if facts.engine != "netgain":
        said.append(f"drafts are those of netgain's proposer; {facts.engine}'s own may copy others, or fewer")
    if facts.concurrency > 1:
        said.append("requests of one batch are charged their mean width, not their joint distribution")
    longest = max(
        record.server.prompt_tokens + record.server.output_tokens for record in facts.records if record.server
    )
    if longest > (measured := max(point.context for point in cost.points)):
        said.append(
            f"contexts reach {longest} tokens; step cost was measured up to {measured} and is held constant above"
        )
    if facts.concurrency > (measured := max(point.batch for point in cost.points)):
        said.append(f"step cost was measured up to batch {measured}, below the concurrency of {facts.concurrency}")
    return tuple(said)
