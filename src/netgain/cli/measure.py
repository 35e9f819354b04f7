"""`netgain measure`: load on any OpenAI-compatible server, and what it made of it; or another tool's result in the same form."""

import datetime
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

from netgain.cli.exit_codes import CANNOT_TELL, DONE, FAILED
from netgain.cli.headers import header as read_header
from netgain.cli.lab_options import Headers, Price, RequestTimeout, Temperature, Workload
from netgain.cost.price import parse_price
from netgain.deciding.report.progress import TerminalProgress
from netgain.documents import to_json
from netgain.errors import UsageError
from netgain.measuring.client.endpoint import base_url
from netgain.measuring.client.interrupt import run_interruptible
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.cost import Pricing
from netgain.measuring.measurement.importing import TOOLS, import_result
from netgain.measuring.measurement.measure import NotWritten
from netgain.measuring.measurement.measure import measure as run_measurement
from netgain.measuring.measurement.result import Measurement, Tool
from netgain.measuring.measurement.show import show
from netgain.measuring.workload.arrivals import SHAPES, Shape
from netgain.measuring.workload.slo import parse_slo
from netgain.plain_file import unused

_FOLDER = Path("netgain-measurements")


def measure(
    url: Annotated[
        str | None, typer.Argument(help="The server, such as http://127.0.0.1:8000.", metavar="[URL]")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model that the server offers; by default its first.")] = None,
    workload: Workload = "chat",
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Closed loop: so many requests in flight (1 without any load option).")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.")] = None,
    arrivals: Annotated[
        str | None, typer.Option(help=f"Open loop: {', '.join(SHAPES)}; poisson where only a rate is given.")
    ] = None,
    cv: Annotated[
        float, typer.Option(help="Of bursty arrivals: standard deviation of the gaps over their mean.")
    ] = 2.0,
    arrivals_from: Annotated[
        Path | None, typer.Option(help="Recording whose arrival times are used; by default the workload's.")
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(help="Targets, such as ttft=500ms,itl.p99=50ms (ttft, itl, tpot, e2e; p95 where not said)."),
    ] = None,
    price: Price = None,
    devices: Annotated[
        int | None,
        typer.Option(help="Devices that --price pays for; by default as many as the server says, else one."),
    ] = None,
    saturate: Annotated[
        bool,
        typer.Option(
            "--saturate",
            help="Search the highest rate at which all targets of the SLO hold together: ttft and itl for goodput; one alone "
            "leaves the pace or the wait free, and the result says so. --rate is where it begins.",
        ),
    ] = False,
    precision: Annotated[float, typer.Option(help="Of the search: 0.1 ends it at a bracket 10 % wide.")] = 0.1,
    repeats: Annotated[
        int, typer.Option(help="Of the search: windows at each end of the bracket, decided by majority.")
    ] = 3,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests that count; by default each prompt once.")
    ] = None,
    duration: Annotated[float | None, typer.Option(help="Seconds in which requests are sent.")] = None,
    warm_up: Annotated[
        float | None,
        typer.Option(help="Seconds of load before requests count; by default until the load has filled up."),
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Minutes that all of it may take.")] = None,
    timeout: RequestTimeout = 300.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Cut outputs at this many tokens.")] = None,
    temperature: Temperature = None,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and sampling.")] = 0,
    reuse_prefixes: Annotated[
        bool,
        typer.Option("--reuse-prefixes", help="Let prompts that are sent again find their own KV (no cache_salt)."),
    ] = False,
    metrics: Annotated[
        str | None, typer.Option(help="URL of the server's metrics, or none; by default URL/metrics.")
    ] = None,
    header: Headers = None,
    with_text: Annotated[bool, typer.Option("--with-text", help="Keep the answers' texts in the records.")] = False,
    import_: Annotated[
        Path | None, typer.Option("--import", metavar="FILE", help="Read another tool's result instead of measuring.")
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TOOL", help=f"Whose result: {', '.join(TOOLS)}; by default found out."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for measurement.json and records.parquet; by default a new one.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print measurement.json instead of tables.")] = False,
) -> int:
    """Send load to a running server: latencies with intervals, goodput under an SLO, the highest rate that holds it."""
    console = Console(stderr=json)
    if devices is not None and price is None:
        raise UsageError("--devices says what --price pays for: give a price, or leave it out")
    pricing = None if price is None else Pricing(price=parse_price(price), devices=devices)
    if import_ is not None:
        if url is not None:
            raise UsageError("--import reads a result; it does not go together with a URL to measure")
        asked = {
            "--model": model is not None,
            "--workload": workload != "chat",
            "--concurrency": concurrency is not None,
            "--rate": rate is not None,
            "--arrivals": arrivals is not None,
            "--arrivals-from": arrivals_from is not None,
            "--saturate": saturate,
            "--requests": requests is not None,
            "--duration": duration is not None,
            "--warm-up": warm_up is not None,
            "--budget": budget is not None,
            "--max-tokens": max_tokens is not None,
            "--temperature": temperature is not None,
            "--metrics": metrics is not None,
            "--header": bool(header),
        }
        if given := [option for option, is_given in asked.items() if is_given]:
            raise UsageError(f"what --import reads was measured already; leave out {', '.join(given)}")
        folder = output or _fresh(import_.stem)
        measurement = import_result(import_, _tool(from_), folder, None if slo is None else parse_slo(slo), pricing)
    else:
        if url is None:
            raise UsageError(
                "name the server, such as netgain measure http://127.0.0.1:8000, or a result with --import FILE"
            )
        if from_ is not None:
            raise UsageError("--from says whose result --import reads; name its file with --import")
        ask = Ask(
            url=url,
            model=model,
            workload=workload,
            concurrency=concurrency,
            shape=_shape(arrivals, rate, arrivals_from),
            rate_per_s=rate,
            cv=cv,
            arrivals_from=None if arrivals_from is None else str(arrivals_from),
            requests=requests,
            duration_s=duration,
            warm_up_s=warm_up,
            slo=None if slo is None else parse_slo(slo),
            saturate=saturate,
            precision=precision,
            repeats=repeats,
            budget_s=None if budget is None else budget * 60.0,
            timeout_s=timeout,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            reuse_prefixes=reuse_prefixes,
            metrics=metrics,
            headers=dict(read_header(text) for text in header or ()),
            with_text=with_text,
            pricing=pricing,
        )
        folder = output or _fresh(urlsplit(base_url(url)).netloc.replace(":", "-"))
        with TerminalProgress(console, lambda: "nothing was written") as progress:
            try:
                measurement = run_interruptible(run_measurement(ask, folder, progress))
            except NotWritten as error:  # what was measured is shown at least
                _print(error.measurement, console, json)
                raise
    _print(measurement, console, json)
    console.print(f"[bold]Result:[/] {folder}", soft_wrap=True)
    if measurement.summary.usable:
        return DONE
    return CANNOT_TELL if measurement.summary.void is not None else FAILED


def _print(measurement: Measurement, console: Console, json: bool) -> None:
    if json:
        sys.stdout.write(to_json(measurement).decode())
    else:
        show(measurement, console)


def _shape(arrivals: str | None, rate: float | None, arrivals_from: Path | None) -> Shape | None:
    name = arrivals or ("recorded" if arrivals_from is not None else "poisson" if rate is not None else None)
    if name is not None and name not in SHAPES:
        raise UsageError(f"there are no arrivals {name!r}; known: {', '.join(SHAPES)}")
    return name


def _tool(name: str | None) -> Tool | None:
    if name is not None and name not in TOOLS:
        raise UsageError(f"results of {name!r} cannot be read; known tools: {', '.join(TOOLS)}")
    return None if name is None else TOOLS[name]


def _fresh(name: str) -> Path:
    return unused(_FOLDER / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{name}")
