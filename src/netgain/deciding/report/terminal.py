"""The decision in a terminal: verdict first, then the few figures that one would ask for next."""

import shlex

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.experiment.spending import BudgetAccount
from netgain.deciding.experiment.sweep import Sweep
from netgain.deciding.report.cost import print_costs
from netgain.deciding.report.figures import ms, number, rate, share, signed_share, times
from netgain.deciding.report.handoffs import print_handoffs
from netgain.deciding.report.outcome import Outcome

COLOURS = {"adopt": "green", "reject": "red", "inconclusive": "yellow"}


def print_summary(outcome: Outcome, console: Console) -> None:
    """Print the summary; plain text where the console is not a terminal."""
    analysis = outcome.analysis
    if analysis is None:
        console.print(Panel(escape(outcome.stopped or ""), title="nothing was tried", border_style="yellow"))
        _limits(outcome, console)
        return
    verdict = analysis.verdict
    colour = COLOURS[verdict.decision]
    lines = [
        f"[bold {colour}]{verdict.decision.upper()}[/]{' (run void)' if verdict.void else ''}",
        escape(verdict.headline),
    ]
    lines += [f"- {escape(reason)}" for reason in verdict.reasons if reason not in verdict.headline]
    if verdict.looped.looped:
        without = verdict.looped.without
        told = "nothing left" if without is None else f"{without.ratio:.2f}x"
        lines.append(f"- {len(verdict.looped.looped)} of {verdict.looped.prompts} answers loop; without them: {told}")
    console.print(
        Panel("\n".join(lines), title=escape(f"{outcome.title} on {outcome.asked.workload}"), border_style=colour)
    )
    print_budget(outcome.budget, console)
    print_sweep(outcome.sweep, console)
    _figures(outcome, console)
    print_costs(outcome.cost, console)
    print_handoffs(outcome.handoffs, outcome.handoffs_unknown, console)
    _quality(outcome, console)
    _gain(outcome, console)
    _limits(outcome, console)
    if outcome.deploy:
        console.print(
            f"[bold]{'Deploy' if verdict.decision == 'adopt' else 'Keep'}:[/] {escape(shlex.join(outcome.deploy))}",
            soft_wrap=True,
        )
    elif outcome.deploy_note:
        console.print(escape(outcome.deploy_note), soft_wrap=True)
    for caveat in outcome.caveats:
        console.print(f"[dim]-[/] {escape(caveat.says)}", highlight=False, soft_wrap=True)
    if analysis.rollback and verdict.decision == "adopt":
        console.print(escape(analysis.rollback.says))


def print_budget(budget: BudgetAccount | None, console: Console) -> None:
    """What became of a budget; marked where it was exceeded or made the experiment smaller."""
    if budget is None:
        return
    colour = "yellow" if budget.exceeded or budget.lost else "dim"
    for said in budget.says:
        console.print(f"[{colour}]-[/] {escape(said)}", highlight=False, soft_wrap=True)


def print_sweep(found: Sweep | None, console: Console) -> None:
    """The effect at each load, where there are several."""
    if found is None:
        return
    table = Table(box=None, pad_edge=False)
    predicted = ("predicted",) if found.predicted else ()
    for name in ("in flight", "speedup", f"interval ({found.confidence:.0%} together)", *predicted, "tokens/s"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for point in found.points:
        effect = point.effect
        within = "none" if effect is None or effect.interval is None else " to ".join(map(times, effect.interval))
        table.add_row(
            str(point.concurrency),
            times(effect.ratio if effect else None),
            within,
            *((times(point.predicted),) if predicted else ()),
            f"{number(point.baseline_tokens_per_s, 1)} -> {number(point.candidate_tokens_per_s, 1)}",
            f"[{COLOURS[point.decision]}]{point.decision}[/]",
        )
    console.print(table)
    console.print(f"[dim]what follows is of {found.points[0].concurrency} in flight[/]", highlight=False)


def _figures(outcome: Outcome, console: Console) -> None:
    analysis = outcome.analysis
    assert analysis is not None
    arms = {arm.name: arm for arm in outcome.arms}
    table = Table(box=None, pad_edge=False)
    for name, justify in (("", "left"), ("predicted", "right"), ("measured", "right"), ("error", "right")):
        table.add_column(name, justify="left" if justify == "left" else "right")
    for row in outcome.scores:
        if row.unit == "ms":
            continue
        write = times if row.unit == "x" else number
        table.add_row(row.figure, write(row.predicted), write(row.measured), signed_share(row.error))
    console.print(table)
    first = analysis.ttft_median
    console.print(
        f"first token {times(first.ratio if first else None)} · output tokens/s "
        f"{number(arms[BASELINE].tokens_per_s, 1)} -> {number(arms[CANDIDATE].tokens_per_s, 1)} · "
        f"same tokens for {analysis.verdict.identity.compared - len(analysis.verdict.identity.differing)} of "
        f"{analysis.verdict.identity.compared} prompts"
        if analysis.verdict.identity
        else ""
    )


def _quality(outcome: Outcome, console: Console) -> None:
    """What a lossy technique was found to cost, or what is missing to say so."""
    if outcome.quality is not None and outcome.quality.says:
        console.print(escape(outcome.quality.says), highlight=False)


def _limits(outcome: Outcome, console: Console) -> None:
    """How close each phase came to the machine's limits."""
    for arm in outcome.limits:
        parts = [
            f"{phase.phase} {rate(phase.achieved, phase.unit)} of {rate(phase.limit, phase.unit)} ({share(phase.share, 0)})"
            if phase.share is not None
            else f"{phase.phase} {rate(phase.achieved, phase.unit)} ({phase.missing})"
            for phase in arm.phases
        ]
        if parts:
            console.print(f"{arm.arm} against the machine: {', '.join(parts)}", highlight=False)
    probe = outcome.probe
    if probe is not None:
        busy = ", while other work ran: limits too low" if probe.busy else ""
        console.print(f"[dim]machine probed {probe.taken}{busy}[/]", highlight=False)


def _gain(outcome: Outcome, console: Console) -> None:
    fall = outcome.analysis.waterfall if outcome.analysis else None
    if fall is None:
        return
    parts = [
        f"{stage} {'−' if saved > 0 else '+'}{ms(abs(saved) / 1e6)}"
        for stage, saved in sorted(fall.saved_ns.items(), key=lambda pair: -pair[1])
        if abs(saved) >= 50_000
    ]
    parts.append(f"residual {'−' if fall.residual_ns > 0 else '+'}{ms(abs(fall.residual_ns) / 1e6)}")
    by = " by the servers' metrics" if fall.by == "metrics" else ""
    console.print(
        f"mean per request{by}: {ms(fall.baseline_ns / 1e6)} -> {ms(fall.candidate_ns / 1e6)} ({', '.join(parts)})"
    )
