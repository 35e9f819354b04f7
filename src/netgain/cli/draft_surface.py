"""`netgain draft surface`: how good drafts would have to be here, by drafts per step and requests at once."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from netgain.cost import break_even
from netgain.errors import UsageError

if TYPE_CHECKING:
    from netgain.cost.break_even import Checked, DraftPrice
    from netgain.cost.step_cost import StepCost
    from netgain.deciding.technique.drafter import Drafter

WIDTH = 130  # of tables that are piped
_LARGEST_CHECKED = 64
Number = TypeVar("Number", int, float)


def _listed(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)


def surface(
    target: Annotated[
        str, typer.Argument(help="The model: 'default', a .gguf file, a Hugging Face folder, or an id.")
    ] = "default",
    curve: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Costs that were measured before: what GET /netgain/step-cost answers. Then no engine is started.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, max=600.0, help="Time for measuring what steps cost.")] = 30.0,
    k: Annotated[str, typer.Option("--k", metavar="N,N,...", help="Drafts per step.")] = _listed(break_even.LENGTHS),
    concurrency: Annotated[str, typer.Option(metavar="N,N,...", help="Requests at once.")] = _listed(
        break_even.BATCHES
    ),
    acceptance: Annotated[
        str, typer.Option(metavar="A,A,...", help="Chances that a draft stands once all before it did.")
    ] = _listed(break_even.ACCEPTANCES),
    context: Annotated[int, typer.Option(min=0, help="Tokens of a request, prompt and answer so far.")] = (
        break_even.CONTEXT
    ),
    draft: Annotated[
        str | None,
        typer.Option(
            help="A draft to place on it: its cost (by its weights) and its survival (by its manifest).",
            show_default=False,
        ),
    ] = None,
    draft_cost: Annotated[
        float | None,
        typer.Option(help="A pass of the draft in plain steps, like 0.05; 0 without --draft.", show_default=False),
    ] = None,
    draft_survival: Annotated[
        str | None,
        typer.Option(
            metavar="S,S,...", help="How often its first, first two, ... tokens all stood.", show_default=False
        ),
    ] = None,
    one_pass: Annotated[bool, typer.Option("--one-pass", help="All drafts of a step come from one pass.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run the engine with synthetic acceptance at a few points.")
    ] = False,
    check_acceptance: Annotated[str, typer.Option(metavar="A,A,...", help="For --check.")] = "0.5,0.8",
    check_k: Annotated[int, typer.Option(min=1, max=64, help="For --check.")] = 4,
    check_concurrency: Annotated[str, typer.Option(metavar="N,N,...", help="For --check.")] = "1,4",
    check_tokens: Annotated[int, typer.Option(min=8, help="For --check: tokens of an answer.")] = 128,
    check_rounds: Annotated[int, typer.Option(min=1, help="For --check.")] = 5,
    dtype: Annotated[str, typer.Option(help="How weights are kept (engine.model.dtype).")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads; by default one per core.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for report.html and draft-surface.json; by default none is written.", show_default=False
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the document instead of the tables.")] = False,
) -> None:
    """Where drafts break even: speed-up by acceptance, drafts per step and requests at once, over measured step costs."""
    from rich.console import Console

    from netgain.deciding.report.surface import DraftSurface, own_draft, read_curve, write_surface
    from netgain.deciding.report.surface_text import show_surface
    from netgain.documents import to_json

    lengths, batches = _numbers("--k", k, int), _numbers("--concurrency", concurrency, int)
    chances = _numbers("--acceptance", acceptance, float)
    survival = None if draft_survival is None else _numbers("--draft-survival", draft_survival, float)
    checked_at = (
        _numbers("--check-acceptance", check_acceptance, float),
        _numbers("--check-concurrency", check_concurrency, int),
    )
    if curve is not None and check:
        raise UsageError("--check compares with what steps cost in this engine, so it measures them: leave --curve out")
    if check and max(checked_at[1]) > _LARGEST_CHECKED:
        raise UsageError(
            f"--check-concurrency {max(checked_at[1])} is more than the {_LARGEST_CHECKED} that can be run"
        )
    drafter = _drafter(draft, survival, draft_cost)
    checked: tuple[Checked, ...] = ()
    step_bytes, kernels = None, None
    load = os.getloadavg()[0]
    if curve is None:
        from netgain.serving.training.synthetic_check import SyntheticCheck

        most = max(*batches, *checked_at[1]) if check else max(batches)
        model = {"source": target, "dtype": dtype, "threads": threads}
        with SyntheticCheck(model, most) as engines:
            name, step_bytes, kernels = (
                str(engines.info["model"]),
                int(engines.info["step_weight_bytes"]),
                str(engines.info["kernels"]),
            )
            _tell(f"measuring what steps cost, {seconds:.0f} s")
            costs = engines.curve(seconds)
            if check:
                checked = engines.check(
                    costs,
                    checked_at[0],
                    check_k,
                    checked_at[1],
                    context=context,
                    tokens=check_tokens,
                    rounds=check_rounds,
                    tell=lambda what, share: _tell(f"running the engine: {what} ({share:.0%})"),
                )
    else:
        costs, name = read_curve(curve), target
    price, basis = _price(drafter, draft_cost, one_pass, step_bytes)
    found = break_even.surface(
        costs, acceptances=chances, lengths=lengths, batches=batches, context=context, price=price
    )
    if not found.known:
        raise UsageError(
            f"no step of these lengths was measured at {concurrency} requests at once; measure longer (--seconds), or ask for "
            "less"
        )
    document = DraftSurface(
        model=name,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        netgain=version("netgain"),
        subject=costs.subject,
        measured_at=costs.measured_at,
        surface=found,
        price_basis=basis,
        draft=own_draft(found, Path(drafter.source).name, drafter.survival, drafter.origin)
        if drafter is not None and drafter.survival
        else None,
        checked=checked,
        context={
            "kernels": kernels,
            "costs measured": _when(costs),
            "load average before": None if curve else round(load, 2),
        },
    )
    stream = sys.stderr if json else sys.stdout
    console = Console(stderr=json, width=None if stream.isatty() else WIDTH)
    if json:
        sys.stdout.write(to_json(document).decode())
    else:
        show_surface(document, console)
    if output is not None:
        console.print(f"Report: {write_surface(document, output)}", soft_wrap=True, highlight=False)


def _drafter(source: str | None, survival: tuple[float, ...] | None, cost: float | None) -> Drafter | None:
    from netgain.deciding.technique.drafter import read_drafter

    if source is not None:
        return read_drafter(source, survival, cost)
    return None if survival is None else read_drafter("the draft", survival, cost)


def _price(
    drafter: Drafter | None, cost: float | None, one_pass: bool, step_bytes: int | None
) -> tuple[DraftPrice, str]:
    if drafter is None:
        basis = "as given" if cost is not None else "nothing, as of drafts copied from text"
        return break_even.DraftPrice(share=cost or 0.0, one_pass=one_pass), basis
    priced = drafter.on(step_bytes)
    if priced.pass_cost is None:
        raise UsageError(
            f"what a pass of {drafter.source} costs is not known here; give it as a share of a plain step (--draft-cost 0.1)"
        )
    return break_even.DraftPrice(share=priced.pass_cost, one_pass=one_pass or drafter.one_pass), priced.cost_basis


def _numbers(option: str, text: str, read: Callable[[str], Number]) -> tuple[Number, ...]:
    try:
        return tuple(read(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is no list of numbers with commas between them, such as 1,2,4") from error


def _when(costs: StepCost) -> str | None:
    if costs.measured_at is None:
        return None
    return datetime.datetime.fromtimestamp(costs.measured_at, datetime.UTC).isoformat(timespec="seconds")


def _tell(said: str) -> None:
    print(said, file=sys.stderr, flush=True)
