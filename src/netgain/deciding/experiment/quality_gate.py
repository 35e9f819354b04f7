"""Whether a lossy candidate's quality was measured, by enough, and lies within limits: without that nothing lossy is adopted.

Held to the lab's standard: what is allowed must be shown by a whole interval, and so must a breach. Anything between is not
enough evidence, which holds adoption back as a breach does, but asks for more measuring instead of rejecting.
"""

from typing import Literal

import msgspec

from netgain.errors import UsageError
from netgain.measuring.quality.divergence import Divergence
from netgain.measuring.quality.estimates import Estimate
from netgain.measuring.quality.paired_scores import Paired
from netgain.measuring.quality.result import QualityComparison
from netgain.wording import count

GateState = Literal["pass", "fail", "not enough"]
FindingState = Literal["held", "breached", "not shown"]
MOST_LEFT_OUT = 0.05  # of a task set: more failures may hide what is lost
NO_TASKS = "no task set was answered by both, and one is required: give your own (--tasks FILE), or go without (--without-tasks)"
LEAST_RIGHT = 5  # tasks that the baseline solves: who solves none cannot lose any


class QualityLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a lossy technique may cost. Docs: docs/quality.md has what usual roundings cost beside these.

    `perplexity_ratio`: candidate over baseline. `kl_mean` and `kl_p99`: nats per position. `same_first`: least share of
    positions with the same likeliest token. Fewer than `positions` or `texts` show nothing. `tasks`: a task set must have
    been answered (its margin is that of the comparison). `unseen`: why what is measured does not show the loss, so that nothing
    can pass.
    """

    perplexity_ratio: float = 1.01
    kl_mean: float = 0.02
    kl_p99: float = 0.3
    same_first: float = 0.94
    positions: int = 2000
    texts: int = 20
    tasks: bool = True
    unseen: str | None = None

    def __post_init__(self) -> None:
        checks = (
            (
                self.perplexity_ratio >= 1.0,
                f"the limit of the perplexity ratio is {self.perplexity_ratio}; give at least 1",
            ),
            (self.kl_mean > 0.0 and self.kl_p99 > 0.0, "limits of KL must be positive"),
            (0.0 <= self.same_first <= 1.0, f"the limit of equal first choices is {self.same_first}; give a share"),
            (self.positions >= 1 and self.texts >= 2, "at least 1 position and 2 texts are needed to show anything"),
        )
        for fine, told in checks:
            if not fine:
                raise UsageError(told)


class QualityFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One figure against its limit. `low` and `high` bound it (95 %); None where there is no interval."""

    name: str
    value: float
    low: float | None
    high: float | None
    limit: float
    state: FindingState
    says: str


class QualityGate(msgspec.Struct, frozen=True, kw_only=True):
    """ "fail": a limit is breached beyond doubt. "not enough": quality was not measured, or by too little to tell."""

    state: GateState
    says: str
    findings: tuple[QualityFinding, ...]


def judge_quality(comparison: QualityComparison | None, limits: QualityLimits | None = None) -> QualityGate:
    """Candidate beside baseline. Texts and tasks each count where they were measured; one of both must have been."""
    limits = limits or QualityLimits()
    if comparison is None:
        return QualityGate(state="not enough", says="quality was not measured", findings=())
    findings: list[QualityFinding] = []
    missing: list[str] = []
    if comparison.divergence is not None:
        few = _too_few(comparison.divergence, limits)
        found = _of_texts(comparison.divergence, limits)
        findings += [
            msgspec.structs.replace(one, state="not shown", says=f"{one.says} over {few}")
            if few and one.state == "held"
            else one
            for one in found
        ]
    elif comparison.tasks is None:
        missing.append(str(comparison.divergence_missing))
    if comparison.tasks is not None:
        findings.append(_of_tasks(comparison.tasks))
    elif limits.tasks:
        missing.append(NO_TASKS)
    if limits.unseen is not None:
        missing.append(limits.unseen)
    breached = [one.says for one in findings if one.state == "breached"]
    unclear = [one.says for one in findings if one.state == "not shown"] + missing
    if breached:
        return QualityGate(state="fail", says=f"quality is lost: {'; '.join(breached)}", findings=tuple(findings))
    if unclear or not findings:
        told = "; ".join(unclear) or "quality was not measured"
        return QualityGate(state="not enough", says=f"not enough evidence of quality: {told}", findings=tuple(findings))
    without = [] if comparison.tasks is not None else ["no task set was given"]
    held = "; ".join([one.says for one in findings] + without)
    return QualityGate(state="pass", says=f"quality holds: {held}", findings=tuple(findings))


def _too_few(found: Divergence, limits: QualityLimits) -> str | None:
    positions, texts = found.kl.positions, found.kl.texts
    if positions >= limits.positions and texts >= limits.texts:
        return None
    return (
        f"{count(positions, 'position')} of {count(texts, 'text')}, which is too little: {limits.positions} of "
        f"{limits.texts} are the least"
    )


def _of_texts(found: Divergence, limits: QualityLimits) -> list[QualityFinding]:
    ratio, kl, first = found.perplexity_ratio, found.kl, found.same_first
    worse = ratio.low is not None and ratio.low > 1.0
    return [
        _row(
            "perplexity ratio",
            ratio,
            limits.perplexity_ratio,
            held=ratio.high is not None and ratio.high <= limits.perplexity_ratio,
            breached=ratio.value > limits.perplexity_ratio and worse,
            says=f"perplexity {ratio.value - 1.0:+.2%}{_within(ratio.low, ratio.high, -1.0, '+.2%')} (limit "
            f"{limits.perplexity_ratio - 1.0:+.2%})",
        ),
        _row(
            "KL, at least",
            kl,
            limits.kl_mean,
            held=kl.high is not None and kl.high <= limits.kl_mean,
            breached=kl.low is not None and kl.low > limits.kl_mean,
            says=f"KL at least {kl.value:.4f} nats per position{_within(kl.low, kl.high, 0.0, '.4f')} (limit "
            f"{limits.kl_mean:g})",
        ),
        QualityFinding(
            name="KL p99, at least",
            value=found.kl_p99,
            low=None,
            high=None,
            limit=limits.kl_p99,
            state="held" if found.kl_p99 <= limits.kl_p99 else "not shown",
            says=f"p99 of KL at least {found.kl_p99:.3f} nats (limit {limits.kl_p99:g})",
        ),
        _row(
            "same first choice",
            first,
            limits.same_first,
            held=first.low is not None and first.low >= limits.same_first,
            breached=first.high is not None and first.high < limits.same_first,
            says=f"the same first choice at {first.value:.2%} of positions{_within(first.low, first.high, 0.0, '.2%')} "
            f"(limit {limits.same_first:.0%})",
        ),
    ]


def _row(name: str, found: Estimate, limit: float, *, held: bool, breached: bool, says: str) -> QualityFinding:
    state: FindingState = "held" if held else "breached" if breached else "not shown"
    return QualityFinding(
        name=name, value=found.value, low=found.low, high=found.high, limit=limit, state=state, says=says
    )


def _of_tasks(found: Paired) -> QualityFinding:
    state: FindingState = {"not worse": "held", "worse": "breached", "too few": "not shown"}[found.state]  # type: ignore[assignment]
    says = (
        f"task score {found.baseline:.1%} -> {found.candidate:.1%} over {count(found.items, 'task')} ("
        f"{found.difference:+.1%}, {found.low:+.1%} to {found.high:+.1%}; margin {found.margin:.1%})"
    )
    if found.state == "too few":
        says += f", too few to tell: about {max(found.needed, found.items + 1)} would show an equal candidate to be so"
    if state == "held" and found.baseline * found.items < LEAST_RIGHT:
        says += "; model too weak to judge: the baseline itself hardly solves any"
        state = "not shown"
    total = found.items + found.left_out
    if found.left_out > MOST_LEFT_OUT * total:
        says += f"; {found.left_out} of {total} tasks have no score from both"
        state = "not shown" if state == "held" else state
    return QualityFinding(
        name="task score",
        value=found.difference,
        low=found.low,
        high=found.high,
        limit=-found.margin,
        state=state,
        says=says,
    )


def _within(low: float | None, high: float | None, offset: float, form: str) -> str:
    if low is None or high is None:
        return ""
    return f", {low + offset:{form}} to {high + offset:{form}}"
