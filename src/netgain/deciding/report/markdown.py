"""A verdict as Markdown for a pull request: what was decided and on what, short enough to be read there; figures in full are in
the files beside it."""

import math
import shlex
from collections.abc import Sequence

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.experiment.statistics import Effect
from netgain.deciding.report.cost import cost_notes, cost_rows
from netgain.deciding.report.figures import number, seconds, share, signed_share, times
from netgain.deciding.report.handoffs import COLUMNS, handoff_notes, handoff_rows
from netgain.deciding.report.markdown_text import fence, items, plain, sentence, table
from netgain.deciding.report.outcome import Outcome, Score
from netgain.deciding.verdict.document import ArmFacts, VerdictDocument
from netgain.deciding.verdict.quality import Quality
from netgain.wording import count

NAME = "report.md"


def verdict_markdown(document: VerdictDocument, scores: Sequence[Score] = (), word: str | None = None) -> str:
    """`scores`: what was predicted beside what was measured. `word`: the result, where it is no decision."""
    lines = [
        f"## {plain(_word(document, word))}: {plain(document.technique.title)}",
        "",
        f"**{sentence(document.headline)}**",
        "",
        *_primary(document),
        *items(
            [
                *(reason for reason in document.reasons if reason not in document.headline),
                f"It holds {document.scope}.",
            ]
        ),
        *_loads(document),
        *_predicted(scores),
        "### Before and after",
        "",
        *_effects(document),
        *_sides(document),
        *_guards(document),
        *_costs(document),
        *_handoffs(document),
        *_quality(document.quality),
        *_section("Budget", () if document.design.budget is None else document.design.budget.says),
        *_section("Caveats", [caveat.says for caveat in document.caveats]),
        *_section("What this cannot show", document.cannot_show),
        "### Going back",
        "",
        sentence(document.rollback.says)
        if document.rollback is not None
        else "No rollback rule can be given: the baseline's time per output token is not known.",
        "",
        *_deploy(document),
        *_about(document),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def nothing_tried_markdown(outcome: Outcome) -> str:
    """Of a run in which no technique could be tried."""
    asked = outcome.asked
    lines = [
        f"## NOTHING TRIED: {plain(asked.model)} on {plain(asked.workload)}",
        "",
        sentence(outcome.stopped or "no technique could be tried"),
        "",
        f"**{sentence(outcome.bottleneck.statement)}**",
        "",
        *items(f"{one.title}: {one.cannot_apply}" for one in outcome.hypotheses if one.cannot_apply),
        *_section("Caveats", [caveat.says for caveat in outcome.caveats]),
        *_section("What this cannot show", outcome.cannot_show),
        footer(outcome.created, outcome.context.get("netgain"), outcome.context.get("cpu")),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _word(document: VerdictDocument, word: str | None) -> str:
    marked = " (run void)" if document.void else ""
    stopped = f" ({document.design.stopped})" if document.design.stopped else ""
    return (word or document.decision.upper()) + marked + stopped


def _between(effect: Effect | None) -> str:
    return "none" if effect is None or effect.low is None else f"{times(effect.low)} to {times(effect.high)}"


def _primary(document: VerdictDocument) -> list[str]:
    """The effect that decided; in a sweep there is one for each load instead."""
    effect = document.primary
    if document.sweep is not None:
        return []
    level = f"{document.confidence * 100:.4g} %"
    found = "The effect could not be measured"
    if effect is not None:
        interval = f"no {level} interval" if effect.low is None else f"{level} interval {_between(effect)}"
        found = f"Speedup **{times(effect.ratio)}** ({interval}; above 1x the candidate is faster)"
    told = f" {plain(document.metric)}; to adopt, at least {document.threshold:.3g}x with the whole interval above 1x."
    if document.detectable is not None:
        told += f" This design adopts a true gain of {share(document.detectable)} four times in five."
    return [f"{found}:{told}", ""]


def _loads(document: VerdictDocument) -> list[str]:
    if document.sweep is None:
        return []
    predicted = document.sweep.predicted
    rows = [
        (
            str(point.concurrency),
            times(None if point.effect is None else point.effect.ratio),
            _between(point.effect),
            *((times(point.predicted),) if predicted else ()),
            point.decision,
        )
        for point in document.sweep.points
    ]
    return [
        "### Up to which load does it pay?",
        "",
        sentence(f"{document.sweep.says}; {document.sweep.crossover_says}"),
        "",
        *table(("Requests in flight", "Speedup", "Interval", *(("Predicted",) if predicted else ()), "Verdict"), rows),
        f"Intervals hold together at {document.sweep.confidence * 100:.4g} %. Figures below are of one of these loads.",
        "",
    ]


def _predicted(scores: Sequence[Score]) -> list[str]:
    rows = [
        (
            one.figure,
            _with_unit(one.predicted, one.unit),
            _with_unit(one.measured, one.unit),
            signed_share(one.error),
        )
        for one in scores
    ]
    if not rows:
        return []
    return [
        "### Predicted before, measured after",
        "",
        *table(("Figure", "Predicted", "Measured", "Error of the prediction"), rows),
    ]


def _with_unit(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    return times(value) if unit == "x" else seconds(value / 1e3) if unit == "ms" else f"{number(value)} {unit}"


def _effects(document: VerdictDocument) -> list[str]:
    named = {} if document.sweep is not None else {"end-to-end time, which decides": document.primary}
    rows = [
        (name, times(None if effect is None else effect.ratio), _between(effect))
        for name, effect in {**named, **document.others}.items()
    ]
    return table(("Speedup (baseline / candidate)", "Ratio", "Interval"), rows)


def _sides(document: VerdictDocument) -> list[str]:
    """Figures that both sides have, before and after."""
    arms = {arm.name: arm for arm in document.arms}
    before, after = arms.get(BASELINE), arms.get(CANDIDATE)
    rows: list[tuple[str, ...]] = []
    if document.gain is not None:
        gain = document.gain
        rows.append(
            (
                "end to end, mean per request",
                seconds(gain.baseline_s),
                seconds(gain.candidate_s),
                _change(gain.candidate_s - gain.baseline_s),
            )
        )
    for tail in document.tails:
        named = tail.name + (" (the slowest of few)" if tail.thin else "")
        between = (
            ""
            if tail.difference_low_s is None
            else f" ({_change(tail.difference_low_s)} to {_change(tail.difference_high_s)})"
        )
        rows.append((named, seconds(tail.baseline_s), seconds(tail.candidate_s), _change(tail.difference_s) + between))
    if before is not None and after is not None:
        rows.append(("output tokens/s", number(before.tokens_per_s, 1), number(after.tokens_per_s, 1), ""))
        rows.append(("requests failed", _failed(before), _failed(after), ""))
    slo = document.slo
    if slo is not None:
        gained = signed_share(slo.gained)
        if slo.gained_low is not None:
            gained += f" ({signed_share(slo.gained_low)} to {signed_share(slo.gained_high)})"
        shares = [share(None if met is None else met.share) for met in (slo.baseline, slo.candidate)]
        rows.append((f"met the whole SLO ({slo.text})", *shares, gained))
    return table(("Figure", "Baseline", "Candidate", "Difference"), rows)


def _change(value_s: float | None) -> str:
    """With its sign; infinite where failures reach a quantile."""
    return f"{'+' if value_s is not None and 0.0 <= value_s < math.inf else ''}{seconds(value_s)}"


def _failed(arm: ArmFacts) -> str:
    if arm.failed is None:
        return "unknown"
    return str(arm.failed) if arm.requests is None else f"{arm.failed} of {arm.requests}"


def _guards(document: VerdictDocument) -> list[str]:
    rows = [
        (
            guard.name,
            *(
                share(value) if guard.name == "failed share" else seconds(value)
                for value in (guard.baseline, guard.candidate, guard.limit)
            ),
            guard.state,
        )
        for guard in document.guards
    ]
    lines = table(("Must not get worse", "Baseline", "Candidate", "Limit", "State"), rows)
    failed = [f"{check.name}: {check.says}" for check in document.checks if check.ok is False]
    return [*lines, *(["The run is not valid, because of:", "", *items(failed)] if failed else [])]


def _costs(document: VerdictDocument) -> list[str]:
    if document.cost is None:
        return []
    rows = table(("Cost", "Baseline", "Candidate", "Candidate / baseline"), cost_rows(document.cost))
    return ["### What it costs", "", *rows, *items(f"{note}." for note in cost_notes(document.cost))]


def _handoffs(document: VerdictDocument) -> list[str]:
    """Nothing of a verdict from before reasons were kept."""
    costs, unknown = document.handoffs, document.handoffs_unknown
    if costs is None and not unknown:
        return []
    rows = table(COLUMNS, handoff_rows(costs, unknown), words=2)
    return ["### What handoffs cost", "", *rows, *items(f"{note}." for note in handoff_notes(costs, unknown))]


def _quality(quality: Quality) -> list[str]:
    state = "not judged" if quality.state is None else quality.state
    lines = [
        "### Quality",
        "",
        f"**{plain(state.capitalize())}**" + (f": {plain(quality.says)}" if quality.says else ""),
        "",
    ]
    rows = []
    if (text := quality.perplexity) is not None:
        low, high = (None if end is None else end - 1.0 for end in (text.low, text.high))
        change = None if text.ratio is None else text.ratio - 1.0
        limit = None if text.limit is None else text.limit - 1.0
        rows.append(
            (
                "perplexity",
                number(text.baseline, 3),
                number(text.candidate, 3),
                signed_share(change),
                _range(low, high),
                signed_share(limit),
                text.state,
            )
        )
    if (kl := quality.divergence) is not None:
        between = "none" if kl.low is None else f"{number(kl.low, 4)} to {number(kl.high, 4)}"
        rows.append(
            ("KL divergence per position, at least", "", "", number(kl.mean, 4), between, number(kl.limit, 3), kl.state)
        )
    for task in quality.tasks:
        rows.append(
            (
                f"task score of {task.name}",
                share(task.baseline),
                share(task.candidate),
                signed_share(task.difference),
                _range(task.low, task.high),
                signed_share(task.limit),
                task.state,
            )
        )
    return [*lines, *table(("Figure", "Baseline", "Candidate", "Difference", "Interval", "Limit", "State"), rows)]


def _range(low: float | None, high: float | None) -> str:
    return "none" if low is None else f"{signed_share(low)} to {signed_share(high)}"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"### {title}", "", *items(lines)] if lines else []


def _deploy(document: VerdictDocument) -> list[str]:
    lines: list[str] = []
    for one in document.deploy:
        said = "Run" if one.advises == "candidate" else "Keep the baseline"
        lines += [f"### Deploy ({plain(one.engine)})", ""]
        if one.command is not None:
            lines += [f"{said}:", "", *fence(shlex.join(one.command), "sh")]
        if one.note is not None:
            lines += [sentence(one.note), ""]
    return lines


def _about(document: VerdictDocument) -> list[str]:
    load, design = document.load, document.design
    asked = [f"workload {load.workload}"]
    if load.prompts is not None:
        asked.append(count(load.prompts, "prompt"))
    if load.concurrency:
        asked.append(f"{', '.join(map(str, load.concurrency))} in flight")
    if load.rate_per_s is not None:
        asked.append(f"{load.rate_per_s:g} requests per second")
    asked += [
        f"{one} {noun}{'' if one == 1 else 's'}"
        for one, noun in ((design.starts, "start"), (design.blocks, "block"), (design.requests, "request"))
        if one is not None
    ]
    arms = [
        f"{arm.name}: {arm.engine or 'unknown engine'} {arm.version or '(version unknown)'}, model {arm.model or 'unknown'}"
        for arm in document.arms
    ]
    return [
        "---",
        "",
        *items([", ".join(asked), *arms]),
        footer(document.created, document.netgain, document.machine.get("cpu")),
    ]


def footer(created: str, version: object, cpu: object) -> str:
    """When, by which version and on what."""
    when = created[:16].replace("T", " ")
    return f"{plain(when)} UTC, netgain {plain(str(version or '(version unknown)'))}, {plain(str(cpu or 'machine unknown'))}."
