"""What both arms cost, in words: the same in HTML and in the terminal."""

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from netgain.cost.price import BASIS, Costs
from netgain.deciding.report.figures import times

_FIGURES = (
    ("per_million_output_tokens", "per million output tokens"),
    ("per_million_tokens", "per million prompt and output tokens"),
    ("per_request_within_slo", "per request within the SLO"),
)


def cost_rows(costs: Costs) -> Iterator[tuple[str, str, str, str]]:
    """Of each cost: its name, the baseline's, the candidate's, and candidate / baseline."""
    for field, label in _FIGURES:
        before, after = (side.price.written(getattr(side, field)) for side in (costs.baseline, costs.candidate))
        yield label, before, after, times(getattr(costs.ratios, field))


def cost_notes(costs: Costs) -> Iterator[str]:
    """What the figures rest on, and why one is unknown."""
    before, after = str(costs.baseline.devices), str(costs.candidate.devices)
    devices = f"each on {before}" if before == after else f"the baseline on {before}, the candidate on {after}"
    yield f"At {costs.baseline.price}, {devices}"
    said = {"baseline": costs.baseline.unknown, "candidate": costs.candidate.unknown}
    if said["baseline"] == said["candidate"]:
        said = {"both": said["baseline"]}
    for name, reasons in said.items():
        if reasons:
            yield f"Unknown of {name if name == 'both' else f'the {name}'}: {'; '.join(reasons)}"
    yield BASIS
    yield "These are totals over the run, without an interval: what is proven of the difference is in the verdict"


def print_costs(costs: Costs | None, console: Console) -> None:
    """Nothing where no price was given."""
    if costs is None:
        return
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(("cost", "baseline", "candidate", "candidate / baseline")):
        table.add_column(name, justify="right" if place else "left")
    for row in cost_rows(costs):
        table.add_row(*map(escape, row))
    console.print(table)
    for note in cost_notes(costs):
        console.print(f"[dim]{escape(note)}.[/]", highlight=False, soft_wrap=True)
