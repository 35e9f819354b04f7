"""A comparison in a terminal: the verdict, what it rests on, and the figures that one would ask for next."""

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from netgain.deciding.compare.outcome import Comparison
from netgain.deciding.compare.traits import written
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.experiment.statistics import Effect
from netgain.deciding.report.cost import print_costs
from netgain.deciding.report.figures import number, seconds, share, times
from netgain.deciding.report.handoffs import print_handoffs
from netgain.deciding.report.terminal import COLOURS, print_budget, print_sweep

MARKS = {"equal": "=", "not needed": "=", "unknown": "?", "overridden": "override", "on purpose": "on purpose"}


def show(outcome: Comparison, console: Console) -> None:
    """Print the summary; plain text where the console is not a terminal."""
    verdict = outcome.analysis.verdict
    marked = (" (run void)" if verdict.void else "") + (f" ({outcome.stopped})" if outcome.stopped else "")
    lines = [
        f"[bold {COLOURS[verdict.decision]}]{outcome.word}[/]{marked}",
        escape(verdict.headline),
        *(f"- {escape(reason)}" for reason in verdict.reasons if reason not in verdict.headline),
        escape(f"It holds {verdict.scope}."),
    ]
    console.print(Panel("\n".join(lines), title=escape(outcome.title), border_style=COLOURS[verdict.decision]))
    print_budget(outcome.budget, console)
    print_sweep(outcome.sweep, console)
    console.print(_effects(outcome))
    console.print(_arms(outcome))
    print_costs(outcome.cost, console)
    print_handoffs(outcome.handoffs, outcome.handoffs_unknown, console)
    console.print(_fields(outcome))
    if outcome.quality is not None and outcome.quality.says:
        console.print(escape(outcome.quality.says), highlight=False, soft_wrap=True)
    for check in verdict.checks:
        if check.ok is False or (
            check.ok is None and check.name in ("restarts", "other users of the servers", "drift")
        ):
            console.print(f"[yellow]{escape(check.name)}[/]: {escape(check.says)}", highlight=False, soft_wrap=True)
    for caveat in outcome.caveats:
        console.print(f"[dim]-[/] {escape(caveat)}", highlight=False, soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left")
    return table


def _effects(outcome: Comparison) -> Table:
    analysis = outcome.analysis
    level = f"{analysis.verdict.confidence * 100:.4g} % interval"
    table = _table("speedup (above 1x the candidate is faster)", "ratio", level)
    rows: list[tuple[str, Effect | None]] = [
        ("end to end, median prompt" if outcome.paired else "end to end, medians", analysis.e2e_median),
        ("end to end, mean time", analysis.e2e_mean),
        ("first token", analysis.ttft_median),
        ("time per output token", analysis.tpot_median),
    ]
    if analysis.a_a is not None:
        rows.append(("baseline's first blocks against its last", analysis.a_a))
    if analysis.control is not None:
        rows.append(("control: baseline against itself", analysis.control))
    for name, effect in rows:
        interval = "none" if effect is None or effect.low is None else f"{times(effect.low)} to {times(effect.high)}"
        table.add_row(name, times(effect.ratio if effect else None), interval)
    return table


def _arms(outcome: Comparison) -> Table:
    table = _table("", "baseline", "candidate", "difference")
    arms = {arm.name: arm for arm in outcome.arms}
    before, after = arms[BASELINE], arms[CANDIDATE]
    for tail in outcome.analysis.tails:
        table.add_row(
            tail.name + (" (slowest of few)" if tail.thin else ""),
            seconds(tail.baseline_s),
            seconds(tail.candidate_s),
            "unknown"
            if tail.difference_s is None
            else f"{'+' if tail.difference_s >= 0 else ''}{seconds(tail.difference_s)}",
        )
    table.add_row("output tokens/s", number(before.tokens_per_s, 1), number(after.tokens_per_s, 1), "")
    if outcome.scaling is not None:
        per = outcome.scaling.per_unit
        unit = outcome.scaling.per.removesuffix("s")
        table.add_row(f"output tokens/s per {unit}", number(per[BASELINE], 1), number(per[CANDIDATE], 1), "")
    if outcome.lengths is not None:
        told = outcome.lengths
        table.add_row(
            "output tokens per answer", number(told.baseline, 1), number(told.candidate, 1), share(told.longer)
        )
    table.add_row("requests failed", f"{before.failed} of {before.requests}", f"{after.failed} of {after.requests}", "")
    identity = outcome.analysis.verdict.identity
    if identity is not None and identity.compared:
        same = identity.compared - len(identity.differing)
        table.add_row(f"same answer, by {identity.basis}", "", f"{same} of {identity.compared}", "")
    return table


def _fields(outcome: Comparison) -> Table:
    table = _table("", "baseline", "candidate", "")
    for row in outcome.fields:
        if row.baseline is not None or row.candidate is not None:
            table.add_row(
                row.field,
                written(row.field, row.baseline),
                written(row.field, row.candidate),
                MARKS.get(row.state, row.state),
            )
    return table
