"""What measuring quality found, for a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from netgain.measuring.quality.answering import TaskScores
from netgain.measuring.quality.estimates import Estimate
from netgain.measuring.quality.result import Quality, QualityComparison, ServerQuality
from netgain.wording import count

_NAMED = 5  # of what failed are named; the JSON has all


def show(quality: Quality, console: Console) -> None:
    """Tables: each server, then both beside each other. Plain text where the console is no terminal."""
    servers = [quality.baseline, *([quality.candidate] if quality.candidate is not None else [])]
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("baseline", "candidate")[: len(servers)]:
        table.add_column(name if len(servers) > 1 else "", justify="right")
    table.add_row("server", *(escape(server.url) for server in servers))
    table.add_row("model", *(escape(server.model) for server in servers))
    _texts(table, servers)
    if any(server.tasks is not None for server in servers):
        _tasks(table, [server.tasks for server in servers])
    console.print(table)
    for server in servers:
        _what_failed(server, console)
    if quality.comparison is not None:
        _beside(quality.comparison, console)


def _texts(table: Table, servers: list[ServerQuality]) -> None:
    found = [server.perplexity for server in servers]
    if not any(one is not None for one in found):
        return
    table.add_row("perplexity", *("unknown" if one is None else f"{one.perplexity.value:.4g}" for one in found))
    table.add_row(
        "  95 % over texts", *("" if one is None else _range(one.perplexity, "{:.4g}") for one in found), style="dim"
    )
    table.add_row(
        "bits per byte",
        *("unknown" if one is None or one.bits_per_byte is None else f"{one.bits_per_byte:.4f}" for one in found),
    )
    table.add_row(
        "tokens scored",
        *(
            "0" if one is None else f"{one.perplexity.positions} in {count(one.perplexity.texts, 'text')}"
            for one in found
        ),
    )
    categories = dict.fromkeys(name for one in found if one is not None for name in one.by_category)
    if len(categories) > 1:
        for category in categories:
            values = [None if one is None else one.by_category.get(category) for one in found]
            table.add_row(
                f"  {escape(category)}",
                *("" if value is None else f"{value.value:.4g}" for value in values),
                style="dim",
            )


def _tasks(table: Table, found: list[TaskScores | None]) -> None:
    table.add_row("task score", *("unknown" if one is None or one.mean is None else f"{one.mean:.1%}" for one in found))
    table.add_row(
        "tasks with a score",
        *("0" if one is None else f"{len(one.answers) - one.failed} of {len(one.answers)}" for one in found),
    )
    categories = dict.fromkeys(name for one in found if one is not None for name in one.by_category)
    if len(categories) > 1:
        for category in categories:
            values = [None if one is None else one.by_category.get(category) for one in found]
            table.add_row(
                f"  {escape(category)}", *("" if value is None else f"{value:.1%}" for value in values), style="dim"
            )


def _what_failed(server: ServerQuality, console: Console) -> None:
    if server.loaded is not None:
        console.print(
            escape(
                f"{server.url}: scored behind KV that it loaded from its tiers ({server.loaded.loaded_tokens:,} tokens, as "
                f"{server.loaded.codecs or 'unknown forms'}), the second half of each text"
            ),
            soft_wrap=True,
        )
    if server.perplexity_missing is not None:
        console.print(escape(f"no perplexity of {server.url}: {server.perplexity_missing}"), soft_wrap=True)
    said = [f"text {one.name}: {one.reason}" for one in server.unscored]
    if server.tasks is not None:
        said += [f"task {one.task}: {one.problem}" for one in server.tasks.answers if one.score is None]
    for line in said[:_NAMED]:
        console.print(escape(f"{server.url}, {line}"), soft_wrap=True)
    if len(said) > _NAMED:
        console.print(f"{server.url}: {len(said) - _NAMED} more without a value; --json names them")


def _beside(found: QualityComparison, console: Console) -> None:
    console.print("\n[bold]candidate beside baseline[/]")
    table = Table(box=None, pad_edge=False)
    for name in ("", "value", "95 %"):
        table.add_column(name, justify="left" if not name else "right")
    apart = found.divergence
    if apart is None:
        table.add_row("KL divergence", "unknown", "")
    else:
        table.add_row(
            "perplexity", f"{apart.perplexity_ratio.value - 1.0:+.3%}", _range(apart.perplexity_ratio, "{:+.3%}", -1.0)
        )
        table.add_row("KL per position, at least (nats)", f"{apart.kl.value:.5f}", _range(apart.kl, "{:.5f}"))
        table.add_row("  p99, largest", f"{apart.kl_p99:.4f}, {apart.kl_largest:.3f}", "")
        table.add_row("  probability not seen", f"{apart.unseen:.2%}", "")
        table.add_row("same first choice", f"{apart.same_first.value:.2%}", _range(apart.same_first, "{:.2%}"))
        table.add_row("positions compared", f"{apart.kl.positions}", "")
    same = found.sameness
    if same is None:
        table.add_row("greedy answers", "unknown", "")
    else:
        equal = same.prompts - len(same.partings)
        table.add_row("equal greedy answers", f"{equal} of {same.prompts}", "")
        if same.partings:
            firsts = sorted(parting.position for parting in same.partings)
            table.add_row("  part first at token (median)", f"{firsts[len(firsts) // 2]}", "")
            table.add_row("  of these at near-ties", f"{same.near_ties}", "")
    tasks = found.tasks
    if tasks is not None:
        table.add_row("task score", f"{tasks.difference:+.2%}", f"{tasks.low:+.2%} to {tasks.high:+.2%}")
        told = f"{tasks.lost} lost, {tasks.won} won"
        table.add_row("  tasks that changed", told, "" if tasks.p is None else f"McNemar p {tasks.p:.3f}")
    console.print(table)
    for reason in (found.divergence_missing, found.sameness_missing):
        if reason is not None:
            console.print(escape(reason), soft_wrap=True)
    if apart is not None and apart.other_tokens:
        console.print(
            f"{count(len(apart.other_tokens), 'text')} left out: cut into different tokens by the two servers"
        )


def _range(estimate: Estimate, form: str, offset: float = 0.0) -> str:
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"{form.format(estimate.low + offset)} to {form.format(estimate.high + offset)}"
