"""`netgain decide`: the main job in one command."""

import datetime
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from netgain.deciding.decide.loop import decide as run_loop
from netgain.deciding.decide.settings import Settings, parse_loads
from netgain.deciding.experiment.verdict import MINIMUM_EFFECT
from netgain.deciding.report.progress import TerminalProgress
from netgain.deciding.report.terminal import print_summary
from netgain.deciding.report.write import write_report


def report_folder(workload: str, now: datetime.datetime) -> Path:
    """The default folder of a report: when, and on what; the time that a recording's name begins with is left out."""
    name = re.sub(r"^\d{8}-\d{6}-", "", Path(workload).stem)
    return Path("netgain-reports") / f"{now:%Y%m%d-%H%M%S}-{name}"


def decide(
    model: Annotated[str, typer.Option(help="'default', a folder, a .gguf file or a Hugging Face id.")] = "default",
    workload: Annotated[
        str,
        typer.Option(
            help="edit, chat, shared-prefix, or the path of a file: JSONL with your own prompts, or a recording."
        ),
    ] = "edit",
    concurrency: Annotated[
        str, typer.Option(help="Requests in flight, or several such as 1,2,4,8: up to which load does it pay?")
    ] = "1",
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="One server start per arm, few prompts, short outputs: minutes.")
    ] = False,
    technique: Annotated[
        str | None, typer.Option(help="Try this technique instead of the one with the highest predicted gain.")
    ] = None,
    slo: Annotated[
        str | None, typer.Option(help="Limits that must hold, such as ttft=500ms,itl.p99=50ms (p95 where not said).")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Overrides the workload's; 0 is greedy.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Cut outputs at this many tokens; 64 with --quick.")] = None,
    minimum_effect: Annotated[
        float, typer.Option(help="A gain below this share of time is not worth adopting.")
    ] = MINIMUM_EFFECT,
    texts: Annotated[
        str, typer.Option(help="Texts on which a lossy technique's quality is measured: bundled, or a file.")
    ] = "bundled",
    tasks: Annotated[
        str | None, typer.Option(help="JSONL with prompts and expected answers, asked of both arms.", metavar="FILE")
    ] = None,
    scorer: Annotated[
        str | None, typer.Option(help="Shell command that scores the answers to the tasks.", metavar="CMD")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of sampling and of the statistics.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A server setting for both arms. May be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for report.html, decision.json and logs; by default a new one in netgain-reports.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure a baseline, try the technique that should help most, and say whether it pays."""
    console = Console()
    folder = output or report_folder(workload, datetime.datetime.now())
    loads = parse_loads(concurrency)
    settings = Settings(
        output=folder,
        model=model,
        workload=workload,
        concurrency=loads[0],
        loads=loads if len(loads) > 1 else (),
        quick=quick,
        technique=technique,
        seed=seed,
        slo=slo,
        temperature=temperature,
        minimum_effect=minimum_effect,
        output_tokens=max_tokens,
        texts=texts,
        tasks=tasks,
        scorer=scorer,
        serve_flags=tuple(part for setting in set_ or () for part in ("--set", setting)),
    )
    with TerminalProgress(console) as progress:
        outcome = run_loop(settings, progress)
    report = write_report(outcome, folder)
    print_summary(outcome, console)
    console.print(f"[bold]Report:[/] {report}", soft_wrap=True)
