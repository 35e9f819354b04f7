"""`netgain cache experiment`: whether KV beyond the device pays on this machine, in five steps."""

import datetime
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from netgain.cli.exit_codes import CANNOT_TELL, DONE, FAILED, INTERRUPTED
from netgain.cli.lab_options import RequestTimeout, Seed
from netgain.plain_file import unused

WIDTH = 120  # of tables that are piped


def experiment(
    model: Annotated[str, typer.Argument(help="'default', a folder, a .gguf file or a Hugging Face id.")] = "default",
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Two starts of the servers, few and short prompts: minutes.")
    ] = False,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of a prompt; by default 1024, and 512 with --quick.", show_default=False)
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(help="Prompts of a repeat; by default 6, and 4 with --quick.", show_default=False)
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Starts of the servers; by default 6, and 2 with --quick.", show_default=False)
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of every answer.")] = 8,
    dram: Annotated[str, typer.Option(metavar="SIZE", help="Room of the tier in memory.")] = "1GiB",
    disk: Annotated[str, typer.Option(metavar="SIZE", help="Room of the tier on disk.")] = "2GiB",
    disk_folder: Annotated[
        Path | None,
        typer.Option(help="The disk to measure: a folder there. By default beside the report.", show_default=False),
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Put both tiers behind a link of so much, such as 200MB/s.", show_default=False)
    ] = None,
    latency: Annotated[str | None, typer.Option(help="And of this latency, such as 2ms.", show_default=False)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of all servers. May be repeated."),
    ] = None,
    seed: Seed = 0,
    start_timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that a server may take to start.")] = 300.0,
    timeout: RequestTimeout = 120.0,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for report.html, kv-experiment.json and logs; by default a new one in netgain-reports.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the document instead of the tables.")] = False,
) -> int:
    """Does KV beyond the device pay here? Five steps: off, cold, warm from DRAM and disk, few hits, device full."""
    # the lab, which the other commands of `netgain cache` need not wait for
    from netgain.deciding.kv.experiment import run_experiment
    from netgain.deciding.kv.settings import Settings
    from netgain.deciding.kv.show import show
    from netgain.deciding.kv.write import write_experiment
    from netgain.deciding.report.progress import TerminalProgress
    from netgain.documents import to_json

    stream = sys.stderr if json else sys.stdout
    console = Console(stderr=json, width=None if stream.isatty() else WIDTH)
    folder = output or unused(Path("netgain-reports") / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-kv-tiers")
    settings = Settings(
        output=folder,
        model=model,
        quick=quick,
        tokens=tokens,
        prompts=prompts,
        repeats=repeats,
        output_tokens=max_tokens,
        dram=dram,
        disk=disk,
        bandwidth=bandwidth,
        latency=latency,
        folder=disk_folder,
        serve_flags=tuple(set_ or ()),
        seed=seed,
        start_timeout_s=start_timeout,
        request_timeout_s=timeout,
    )
    with TerminalProgress(
        console, lambda: "no repeat was finished; the servers that were started are gone"
    ) as progress:
        outcome = run_experiment(settings, progress)
    if json:
        sys.stdout.write(to_json(outcome).decode())
    else:
        show(outcome, console)
    report = write_experiment(outcome, folder)  # after it was shown: a full disk must not cost the figures
    console.print(f"[bold]Report:[/] {report}", soft_wrap=True)
    if outcome.stopped is not None:
        return INTERRUPTED
    if outcome.wrong_answers:
        return FAILED
    return DONE if outcome.tells else CANNOT_TELL
