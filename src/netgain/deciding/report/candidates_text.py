"""Several candidates in a terminal and as Markdown for a pull request: which to turn on first, then each with its figures."""

import shlex

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from netgain.deciding.report.figures import chance, times
from netgain.deciding.report.markdown import footer
from netgain.deciding.report.markdown_text import fence, items, plain, sentence, table
from netgain.deciding.report.several import CandidateLine, CandidatesDocument
from netgain.deciding.report.terminal import COLOURS

COLUMNS = ("Candidate", "Predicted", "Measured", "Interval", "p", "Held to", "Verdict")


def print_candidates(document: CandidatesDocument, console: Console) -> None:
    """Plain text where the console is not a terminal."""
    colour = COLOURS["adopt" if document.adopted else "inconclusive"]
    lines = [
        f"[bold {colour}]{escape(_word(document))}[/]",
        escape(document.headline),
        *(f"- {escape(said)}" for said in document.says),
    ]
    title = f"{len(document.tried)} candidates on {document.load.workload}"
    console.print(Panel("\n".join(lines), title=escape(title), border_style=colour))
    if document.budget is not None:
        console.print(
            f"[{'yellow' if document.budget.exceeded else 'dim'}]-[/] {escape(document.budget.says)}",
            highlight=False,
            soft_wrap=True,
        )
    shown = Table(box=None, pad_edge=False)
    for place, name in enumerate(COLUMNS):
        shown.add_column(name.lower(), justify="left" if place in (0, len(COLUMNS) - 1) else "right", no_wrap=True)
    for one in document.tried:
        *cells, decision = _cells(one)
        shown.add_row(*map(escape, cells), f"[{COLOURS[one.decision or 'inconclusive']}]{decision}[/]")
    console.print(shown)
    for one in document.tried:
        told = "; ".join(said for said in one.reasons if said not in (one.headline or ""))
        console.print(f"[dim]-[/] {escape(one.technique)}: {escape(told)}", highlight=False, soft_wrap=True)
    for one in document.lines:
        if one.untried is not None:
            console.print(
                f"[yellow]-[/] {escape(one.technique)}: {escape(one.untried)}", highlight=False, soft_wrap=True
            )
    for said in document.caveats:
        console.print(f"[dim]-[/] {escape(said)}", highlight=False, soft_wrap=True)
    deploy = document.deploy
    if deploy is not None and deploy.command is not None:
        word = "Deploy" if deploy.advises == "candidate" else "Keep"
        console.print(f"[bold]{word}:[/] {escape(shlex.join(deploy.command))}", soft_wrap=True)
    if deploy is not None and deploy.note is not None:
        console.print(escape(deploy.note), soft_wrap=True)


def candidates_markdown(document: CandidatesDocument) -> str:
    """The same for a pull request, with links to nobody; each candidate's own report.md has the rest."""
    deploy = document.deploy
    lines = [
        f"## {plain(_word(document))}: {len(document.tried)} candidates on {plain(document.load.workload)}",
        "",
        f"**{sentence(document.headline)}**",
        "",
        *items([*document.says, *(() if document.budget is None else (document.budget.says,))]),
        *table(COLUMNS, [_cells(one) for one in document.tried]),
    ]
    for one in document.tried:
        lines += [f"### {plain(one.title)}: {one.decision}", "", sentence(one.headline or ""), ""]
        lines += items(said for said in one.reasons if said not in (one.headline or ""))
    untried = [f"{one.title}: {one.untried}" for one in document.lines if one.untried is not None]
    told = (("Not tried", untried), ("Caveats", document.caveats), ("What this cannot show", document.cannot_show))
    for title, said in told:
        lines += [f"### {title}", "", *items(said)] if said else []
    if deploy is not None:
        lines += [f"### Deploy ({plain(deploy.engine)})", ""]
        if deploy.command is not None:
            said_so = "Run" if deploy.advises == "candidate" else "Keep the baseline"
            lines += [f"{said_so}:", "", *fence(shlex.join(deploy.command), "sh")]
        if deploy.note is not None:
            lines += [sentence(deploy.note), ""]
    lines += ["---", "", footer(document.created, document.netgain, document.machine.get("cpu"))]
    return "\n".join(lines).rstrip("\n") + "\n"


def _word(document: CandidatesDocument) -> str:
    return "ADOPT NONE" if document.adopted is None else f"ADOPT {document.adopted}"


def _cells(one: CandidateLine) -> tuple[str, ...]:
    effect = one.effect
    return (
        one.technique,
        times(one.predicted),
        times(None if effect is None else effect.ratio),
        "none" if effect is None or effect.low is None else f"{times(effect.low)} to {times(effect.high)}",
        "" if one.p is None else chance(one.p),
        "" if one.level is None else f"{one.level * 100:.3g} %",
        f"{one.decision}{' (run void)' if one.void else ''}",
    )
