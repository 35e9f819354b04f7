"""A break-even surface in a terminal: break-even by batch and length, one table of speed-ups per batch, and what was checked."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from netgain.cost.break_even import Plane, Surface
from netgain.deciding.report.figures import number, seconds, share, times
from netgain.deciding.report.surface import DraftSurface

NOT_MEASURED, NEVER = "-", "never"


def show_surface(document: DraftSurface, console: Console) -> None:
    """Print all of it; plain text where the console is not a terminal."""
    found = document.surface
    console.print(f"[bold]{escape(document.model)}[/]: {document.label}", highlight=False, soft_wrap=True)
    console.print(
        f"{found.context} tokens of context; a pass of the draft costs {share(found.price.share)} of a plain step"
        f"{', and makes all drafts of a step' if found.price.one_pass else ''} ({escape(document.price_basis)})",
        highlight=False,
        soft_wrap=True,
    )
    console.print("\nAcceptance from which drafts pay (and tokens that a step then has to commit):", highlight=False)
    console.print(_break_even(found))
    for plane in found.planes:
        if any(column is not None for column in plane.columns):
            console.print(f"\nSpeed-up of decoding, {plane.batch} at once, by acceptance:", highlight=False)
            console.print(_plane(plane, found))
    if document.draft is not None:
        survived = ", ".join(share(value) for value in document.draft.survival)
        console.print(
            f"\n{escape(document.draft.name)}: its first tokens stood in {survived} of the steps "
            f"({escape(document.draft.origin)}); predicted speed-up by requests at once:",
            highlight=False,
            soft_wrap=True,
        )
        console.print(_own(document))
    if document.checked:
        console.print("\nChecked in the engine, with drafts kept at random and free to make:", highlight=False)
        console.print(_checked(document))
    console.print()
    for said in document.cannot_show:
        console.print(f"[dim]- {escape(said)}[/]", highlight=False, soft_wrap=True)


def _table(first: str, names: list[str]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, justify="right")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _lengths(found: Surface) -> list[str]:
    return [f"K {k}" for k in found.lengths]


def _break_even(found: Surface) -> Table:
    table = _table("at once", ["plain step", *_lengths(found)])
    for plane in found.planes:
        cells = [seconds(plane.plain_s)]
        for column in plane.columns:
            if column is None:
                cells.append(NOT_MEASURED)
            elif column.break_even is None:
                cells.append(f"{NEVER} ({column.needed:.2f})")
            else:
                cells.append(f"{share(column.break_even, 0)} ({column.needed:.2f})")
        table.add_row(str(plane.batch), *cells)
    return table


def _plane(plane: Plane, found: Surface) -> Table:
    table = _table("acceptance", _lengths(found))
    for row, acceptance in enumerate(found.acceptances):
        best = plane.best(row)
        cells = []
        for column in plane.columns:
            if column is None:
                cells.append(NOT_MEASURED)
                continue
            value = times(column.speedups[row])
            colour = "green" if column.speedups[row] > 1.0 else "red"
            chosen = best is not None and best.k == column.k
            cells.append(f"[bold {colour}]*{value}[/]" if chosen else f"[{colour}]{value}[/]")
        table.add_row(share(acceptance, 0), *cells)
    ends = [
        NOT_MEASURED if one is None else NEVER if one.break_even is None else share(one.break_even, 0)
        for one in plane.columns
    ]
    table.add_row("pays from", *ends)
    return table


def _own(document: DraftSurface) -> Table:
    table = _table("at once", _lengths(document.surface))
    assert document.draft is not None
    for plane, values in zip(document.surface.planes, document.draft.speedups, strict=True):
        table.add_row(str(plane.batch), *(NOT_MEASURED if value is None else times(value) for value in values))
    return table


def _checked(document: DraftSurface) -> Table:
    figures = [
        f"{what}\n{how}" for what in ("speed-up", "tokens/step", "wider step") for how in ("predicted", "measured")
    ]
    table = _table("acceptance", ["K", "at once", *figures, "rounds"])
    for one in document.checked:
        table.add_row(
            share(one.acceptance, 0),
            str(one.k),
            str(one.batch),
            times(one.predicted_speedup),
            f"{times(one.measured_speedup)} ({one.lowest:.2f} to {one.highest:.2f})",
            number(one.predicted_committed),
            number(one.measured_committed),
            times(one.predicted_verify),
            times(one.measured_verify),
            str(one.rounds),
        )
    return table
