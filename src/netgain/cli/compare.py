"""`netgain compare`: two servers that run, or two results, side by side."""

import datetime
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from netgain.cli.headers import header
from netgain.deciding.compare.run import compare as run_comparison
from netgain.deciding.compare.settings import Settings, SideAsked
from netgain.deciding.compare.show import show
from netgain.deciding.compare.write import write_comparison
from netgain.deciding.experiment.verdict import MINIMUM_EFFECT
from netgain.deciding.report.progress import TerminalProgress

_FOLDER = Path("netgain-reports")


def compare(
    baseline: Annotated[
        list[str],
        typer.Option(metavar="URL|PATH", help="A running server, or a result of netgain measure or of another tool."),
    ],
    candidate: Annotated[list[str], typer.Option(metavar="URL|PATH", help="What is to be better than the baseline.")],
    workload: Annotated[
        str,
        typer.Option(
            help="edit, chat, shared-prefix, or the path of a file: JSONL with your own prompts, or a recording."
        ),
    ] = "chat",
    concurrency: Annotated[int, typer.Option(help="Requests in flight.")] = 1,
    quick: Annotated[bool, typer.Option("--quick/--full", help="Fewer prompts, short outputs: minutes.")] = False,
    budget: Annotated[float | None, typer.Option(help="Minutes that the experiment may take.")] = None,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Resources differ on purpose: throughput per device, no adopt or reject.")
    ] = False,
    override: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=REASON", help="Let a field differ that must be equal; the report keeps the reason."
        ),
    ] = None,
    baseline_is: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE,...",
            help="What the baseline does not tell, such as dtype=bf16,devices=1, or a .toml file.",
        ),
    ] = None,
    candidate_is: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=VALUE,...", help="The same of the candidate.")
    ] = None,
    baseline_model: Annotated[
        str | None, typer.Option(help="Which model of the baseline's server; by default its first.")
    ] = None,
    candidate_model: Annotated[str | None, typer.Option(help="Which model of the candidate's server.")] = None,
    control: Annotated[
        bool,
        typer.Option("--control", help="Also compare the baseline with itself; needed where both URLs are one server."),
    ] = False,
    reset_caches: Annotated[
        bool,
        typer.Option(
            "--reset-caches",
            help="Reset the servers' caches before each block, where salts do not do: nobody else uses them.",
        ),
    ] = False,
    same_tokens: Annotated[
        bool,
        typer.Option(
            "--same-tokens", help="The candidate promises the baseline's very tokens: reject it if they differ."
        ),
    ] = False,
    slo: Annotated[
        str | None, typer.Option(help="Limits that must hold, such as ttft=500ms,itl.p99=50ms (p95 where not said).")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Overrides the workload's; 0 is greedy.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Cut outputs at this many tokens; 64 with --quick.")] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Let every answer run to its limit, so that both write equally much.")
    ] = False,
    minimum_effect: Annotated[
        float, typer.Option(help="A difference below this share of time does not matter.")
    ] = MINIMUM_EFFECT,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that one request may take.")] = 300.0,
    seed: Annotated[int, typer.Option(help="Seed of sampling and of the statistics.")] = 0,
    header_: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="NAME=VALUE", help="Sent to both servers, such as an API key. May be repeated."
        ),
    ] = None,
    baseline_header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="To the baseline only.")
    ] = None,
    candidate_header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="To the candidate only.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for report.html and comparison.json; by default a new one in netgain-reports.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print comparison.json instead of tables.")] = False,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate", help="Exit with 1 when the candidate is rejected: for CI. A void run exits with 1 anyway."
        ),
    ] = False,
) -> int:
    """Measure two running servers in turns, or read two results, and say whether the second is better."""
    console = Console(stderr=json)
    both = [header(text) for text in header_ or ()]
    folder = output or _FOLDER / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-compare"
    settings = Settings(
        output=folder,
        baseline=SideAsked(
            sources=tuple(baseline),
            model=baseline_model,
            declared=tuple(baseline_is or ()),
            headers=dict([*both, *(header(text) for text in baseline_header or ())]),
        ),
        candidate=SideAsked(
            sources=tuple(candidate),
            model=candidate_model,
            declared=tuple(candidate_is or ()),
            headers=dict([*both, *(header(text) for text in candidate_header or ())]),
        ),
        kind="scaling" if scaling else "equal resources",
        overrides=tuple(override or ()),
        control=control,
        may_reset=reset_caches,
        promises_identity=same_tokens,
        workload=workload,
        concurrency=concurrency,
        quick=quick,
        budget_s=None if budget is None else budget * 60.0,
        output_tokens=max_tokens,
        ignore_eos=ignore_eos,
        temperature=temperature,
        slo=slo,
        minimum_effect=minimum_effect,
        seed=seed,
        request_timeout_s=timeout,
    )
    with TerminalProgress(console, stopped="no verdict was given, and the servers were left as they are") as progress:
        outcome = run_comparison(settings, progress)
    report = write_comparison(outcome, folder)
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(outcome)).decode() + "\n")
    else:
        show(outcome, console)
    console.print(f"[bold]Report:[/] {report}", soft_wrap=True)
    verdict = outcome.analysis.verdict
    return int(verdict.void or (gate and verdict.decision == "reject"))
