"""Speculation with a model or trained heads, predicted from how many of their drafts were measured to stand, what a wider step
was measured to cost, and what a pass of the draft costs."""

import numpy as np

from netgain.cost.step_cost import StepCost
from netgain.deciding.technique.drafter import Drafter
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.prediction import Considered, Prediction, Setting
from netgain.deciding.technique.replayed import (
    bounds,
    decode_part,
    measured_drafts,
    not_covered,
    relative_cost,
    total,
)
from netgain.errors import UsageError
from netgain.ledger.records import DraftCounts, RequestRecord
from netgain.ledger.stage import Stage
from netgain.measuring.client.record import ClientRecord

PICTURED = 1000  # steps that predicted survival is shown as shares of


def cannot_predict(facts: Facts, drafter: Drafter) -> str | None:
    """Why nothing can be said of this draft here, or None."""
    if drafter.survival is None:
        return (
            f"how many drafts of {drafter.source} are accepted was not measured: train it to its end or give what netgain draft "
            "evaluate, or the engine's own counters, say per position (--draft-survival 0.6,0.35)"
        )
    if drafter.pass_cost is None:
        return f"what a pass of {drafter.source} costs is not known; give it as a share of a decode step (--draft-cost 0.1)"
    if facts.step_cost is None:
        return f"the cost of a wider step is not known ({facts.step_cost_missing or 'not measured'})"
    if not lengths(facts.step_cost, drafter):
        return "the engine measured steps of one token only, so the cost of verifying drafts is not known"
    if not _pool(facts):
        return "no recorded request has at least two output tokens and its stages, so there is no decoding to predict"
    return None


def lengths(cost: StepCost, drafter: Drafter) -> tuple[int, ...]:
    """Both their verification and their survival were measured; neither is extrapolated."""
    return tuple(k for k in measured_drafts(cost) if k <= len(drafter.survival or ()))


def committed_per_step(survival: tuple[float, ...], k: int) -> float:
    """Of a step of `k` drafts that the text's end does not cut off: one more than are accepted."""
    return 1.0 + sum(survival[:k])


def predict_by_survival(
    technique: str, facts: Facts, drafter: Drafter, also_not_covered: tuple[str, ...]
) -> Prediction:
    """Only where `cannot_predict` found nothing."""
    cost, survival, pass_cost = facts.step_cost, drafter.survival, drafter.pass_cost
    if cost is None or survival is None or pass_cost is None:
        raise UsageError(f"{technique}: {cannot_predict(facts, drafter)}")
    outcomes = [_at(facts, cost, drafter, survival, pass_cost, k) for k in lengths(cost, drafter)]
    best = max(outcomes, key=lambda outcome: outcome.net_s)
    k = int(best.setting["k"])
    pictured = DraftCounts(
        steps=PICTURED, drafted=[PICTURED] * k, accepted=[round(PICTURED * share) for share in survival[:k]]
    )
    low, high = bounds(best.ratios)
    return Prediction(
        technique=technique,
        setting=best.setting,
        off_is_better=best.net_s <= 0.0,
        speedup_e2e=float(np.median(best.ratios)),
        low=low,
        high=high,
        speedup_tpot=float(np.median(best.token_ratios)),
        speedup_mean=best.whole_s / max(1e-9, best.whole_s - best.net_s),
        saved_s=best.saved_s,
        spent_s=best.spent_s,
        net_s=best.net_s,
        committed_per_step=committed_per_step(survival, k),
        drafts=pictured,
        considered=tuple(outcome.considered() for outcome in sorted(outcomes, key=lambda o: -o.net_s)),
        basis=(
            f"survival by position from {drafter.origin}; step cost {facts.step_cost_basis}; a pass of the draft takes "
            f"{pass_cost:.0%} of a decode step ({drafter.cost_basis})"
        ),
        not_covered=(
            *not_covered(facts, cost),
            "survival is taken to be the same on this workload's prompts and temperature as where it was measured",
            "a pass of the draft is taken to cost the same share of a step at every load, and the reading of prompts by the "
            "draft is not in the figure",
            *also_not_covered,
        ),
    )


class _Outcome:
    """One draft length over all requests."""

    def __init__(self, setting: Setting, per_step: float, whole_s: float) -> None:
        self.setting = setting
        self.per_step = per_step
        self.whole_s = whole_s
        self.ratios = np.empty(0)
        self.token_ratios = np.empty(0)
        self.saved_s: dict[Stage, float] = {}
        self.spent_s: dict[Stage, float] = {}

    @property
    def net_s(self) -> float:
        return sum(self.saved_s.values()) - sum(self.spent_s.values())

    def considered(self) -> Considered:
        return Considered(
            setting=self.setting,
            net_s=self.net_s,
            speedup_e2e=float(np.median(self.ratios)),
            committed_per_step=self.per_step,
        )


def _at(
    facts: Facts, cost: StepCost, drafter: Drafter, survival: tuple[float, ...], pass_cost: float, k: int
) -> _Outcome:
    pool = _pool(facts)
    per_step = committed_per_step(survival, k)
    setting: Setting = {"k": k, "draft": drafter.source, "kind": drafter.kind}
    outcome = _Outcome(setting, per_step, sum(record.e2e_s for record, _ in pool) / len(pool))
    ratios, token_ratios = [], []
    decode_s = verify_s = draft_s = other_s = 0.0
    for record, server in pool:
        now = decode_part(server)
        ordinary = server.output_tokens - 1
        steps = ordinary / per_step
        step_s = now.decode_s / ordinary
        wider = relative_cost(cost, facts.concurrency, 1.0 + k, server.prompt_tokens + server.output_tokens // 2)
        verified, drafted = steps * step_s * wider, steps * step_s * pass_cost * (1 if drafter.one_pass else k)
        others = now.other_s * steps / ordinary
        then = verified + drafted + others
        ratios.append(record.e2e_s / max(1e-9, record.e2e_s - total(now) + then))
        token_ratios.append(total(now) / max(1e-9, then))
        decode_s, other_s = decode_s + now.decode_s, other_s + now.other_s - others
        verify_s, draft_s = verify_s + verified, draft_s + drafted
    outcome.ratios, outcome.token_ratios = np.array(ratios), np.array(token_ratios)
    outcome.saved_s = {Stage.DECODE: decode_s / len(pool), Stage.UNATTRIBUTED: other_s / len(pool)}
    outcome.spent_s = {Stage.VERIFY: verify_s / len(pool), Stage.DRAFT: draft_s / len(pool)}
    return outcome


def _pool(facts: Facts) -> list[tuple[ClientRecord, RequestRecord]]:
    return [
        (record, record.server)
        for record in facts.records
        if record.ok
        and record.server is not None
        and record.server.ttft_stages is not None
        and record.server.output_tokens >= 2
        and decode_part(record.server).decode_s > 0.0
    ]
