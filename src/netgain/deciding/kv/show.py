"""An experiment on KV tiers in a terminal: each step's sentence, and the figures that it rests on."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from netgain.deciding.kv.outcome import KVExperiment, LinkBreakEven, RoleFigures, Step
from netgain.deciding.report.figures import rate, seconds, share

COLOURS = {"gain": "green", "loss": "red", "cannot tell": "yellow"}


def show(outcome: KVExperiment, console: Console) -> None:
    """Print the summary; plain text where the console is not a terminal."""
    for number, step in enumerate(outcome.steps, 1):
        console.print(f"\n[bold]{number}. {escape(step.title)}[/]", highlight=False)
        console.print(_figures(step))
        for claim in step.claims:
            what, _, told = escape(claim.says).partition(": ")
            told = told.replace(claim.word, f"[bold {COLOURS[claim.word]}]{claim.word}[/]", 1)
            console.print(f"{what}: {told}", highlight=False, soft_wrap=True)
        if step.regret is not None:
            console.print(escape(step.regret.says), highlight=False, soft_wrap=True)
    if outcome.break_even:
        console.print(
            "\n[bold]Prefix length in tokens from which on loading is predicted to beat computing[/]", highlight=False
        )
        console.print(_break_even(outcome.break_even))
    if outcome.caveats or outcome.stopped:
        console.print()
    if outcome.stopped is not None:
        console.print(f"[yellow]{escape(outcome.stopped)}[/]", highlight=False)
    for caveat in outcome.caveats:
        console.print(f"[yellow]-[/] {escape(caveat)}", highlight=False, soft_wrap=True)
    console.print(
        f"\n[dim]Intervals of {outcome.confidence:.1%} each, so that all claims together hold with 95 %. A hit is not success; a "
        "gain is.[/]",
        highlight=False,
        soft_wrap=True,
    )


def _figures(step: Step) -> Table:
    table = Table(box=None, pad_edge=False)
    names = ("", "first token", "p95", "requests hit", "tokens hit", "from a tier", "loaded at", "loads", "recomputes")
    for place, name in enumerate(names):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    for role in step.roles:
        table.add_row(role.title, *_cells(role))
    return table


def _break_even(links: tuple[LinkBreakEven, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(("link", "latency", "bandwidth", "from tokens")):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    for one in links:
        table.add_row(one.link, seconds(one.latency_s), rate(one.bytes_per_s, "bytes"), one.says)
    return table


def _cells(role: RoleFigures) -> tuple[str, ...]:
    hits = role.hits
    own = (
        seconds(role.ttft_mean_s),
        seconds(role.ttft_p95_s),
        share(hits.request_rate),
        share(hits.token_rate),
    )
    if role.decisions is None or role.loads is None:
        return (*own, "", "", "", "")
    return (
        *own,
        share(hits.token_rate_beyond),
        rate(role.loads.bytes_per_s, "bytes") if role.loads.requests else "",
        str(role.decisions.loads),
        str(role.decisions.recomputes),
    )
