"""The figures as two tables for a reader: speedups by category and load, and the control against none."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from benchmarks import _report
from benchmarks.speculation.cells import CONCURRENCIES, LOADS

Figures = Mapping[str, _report.Figure]


def speedup_table(found: Figures, categories: Sequence[str], names: Sequence[str]) -> Table:
    """In every cell: speedup [interval], tokens per iteration, overhead of an iteration."""
    table = Table(title="Speedup [95 %] · tokens per iteration · cost of an iteration", title_justify="left")
    table.add_column("category")
    table.add_column("drafts")
    for load in CONCURRENCIES:
        table.add_column(f"c={load}", justify="right")
    for category in categories:
        for name in names:
            cells = (_speedup(found, f"{category}_{name}_c{load}") for load in CONCURRENCIES)
            table.add_row(category if name == names[0] else "", name, *cells, end_section=name == names[-1])
    return table


def control_table(found: Figures, workloads: Sequence[str], names: Sequence[str]) -> Table:
    table = Table(title="Time without speculation over time under the goodput control [95 %]", title_justify="left")
    table.add_column("workload")
    table.add_column("drafts")
    for load in LOADS:
        table.add_column(f"c={load}", justify="right")
    for workload in workloads:
        for name in names:
            suffixes = [f"{workload}_{name}_c{load}" for load in LOADS]
            cells = (_ratio(found, "goodput", suffix) for suffix in suffixes)
            table.add_row(workload if name == names[0] else "", name, *cells, end_section=name == names[-1])
    return table


def _speedup(found: Figures, suffix: str) -> str:
    ratio = _ratio(found, "speedup", suffix)
    tokens, overhead = found[f"tokens_per_iteration_{suffix}"], found[f"overhead_{suffix}"]
    return f"{ratio} · {_number(tokens)} · {_number(overhead)}" if ratio else ""


def _ratio(found: Figures, kind: str, suffix: str) -> str:
    middle, low, high = (found[f"{kind}_{suffix}{end}"] for end in ("", "_low", "_high"))
    if middle is None:
        return ""
    return f"{_number(middle)}" + ("" if low is None else f" \\[{_number(low)}, {_number(high)}]")


def _number(value: _report.Figure) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "-"
