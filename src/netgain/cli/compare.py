"""`netgain compare`: two servers that run, two that are started for it, or two results, side by side."""

import datetime
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from netgain.cli.exit_codes import INTERRUPTED, of_verdict
from netgain.cli.headers import header
from netgain.cli.lab_options import CutTokens, Price, RequestTimeout, Seed, Slo, Temperature, Workload
from netgain.cli.quality_options import (
    LIMITS,
    Margin,
    MaxKl,
    MaxKlP99,
    MaxPerplexity,
    MinSameFirst,
    NeedTasks,
    Scorer,
    Tasks,
    asked_limits,
)
from netgain.cost.price import parse_price
from netgain.deciding.compare.run import compare as run_comparison
from netgain.deciding.compare.settings import START_TIMEOUT_S, QualityAsked, Settings, SideAsked
from netgain.deciding.compare.show import show
from netgain.deciding.compare.write import write_comparison
from netgain.deciding.decide.budget import parse_budget
from netgain.deciding.decide.prepared import to_go_on_with
from netgain.deciding.decide.settings import parse_loads
from netgain.deciding.experiment.arms.described import Described, describe, describes_an_arm
from netgain.deciding.experiment.verdict import MINIMUM_EFFECT
from netgain.deciding.report.progress import TerminalProgress
from netgain.documents import to_json
from netgain.errors import UsageError
from netgain.measuring.quality.paired_scores import MARGIN
from netgain.measuring.quality.texts import BUNDLED
from netgain.plain_file import unused

_FOLDER = Path("netgain-reports")


def compare(
    baseline: Annotated[
        list[str],
        typer.Option(
            metavar="URL|ARM|PATH",
            help="A running server; an arm to start, as a YAML or TOML file or its command line in one text; or a result of "
            "netgain measure or of another tool.",
        ),
    ],
    candidate: Annotated[
        list[str], typer.Option(metavar="URL|ARM|PATH", help="What is to be better than the baseline.")
    ],
    workload: Workload = "chat",
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="Requests in flight, or several such as 1,2,4,8: from which load on is which side faster? 1 where no rate is "
            "given.",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second, arriving at random (Poisson), whatever is in flight.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Fewer prompts and starts, short outputs: minutes.")
    ] = False,
    starts: Annotated[
        int | None,
        typer.Option(
            help="Starts of each of two arms that are started here; 6, and 2 with --quick.", show_default=False
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Most time of the experiment, such as 20m or 2h: device-hours where arms are started, else on the clock."
        ),
    ] = None,
    start_timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that a server may take to start.")
    ] = START_TIMEOUT_S,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a run on servers that ended before its end: go on with the same settings.",
            show_default=False,
        ),
    ] = None,
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
    texts: Annotated[
        str | None,
        typer.Option(
            help="Also measure the quality of both on texts: bundled, or a file. Needed before a candidate that may answer "
            "worse is adopted.",
            show_default=False,
        ),
    ] = None,
    tasks: Tasks = None,
    scorer: Scorer = None,
    margin: Margin = MARGIN,
    max_perplexity: MaxPerplexity = LIMITS.perplexity_ratio,
    max_kl: MaxKl = LIMITS.kl_mean,
    max_kl_p99: MaxKlP99 = LIMITS.kl_p99,
    min_same_first: MinSameFirst = LIMITS.same_first,
    require_tasks: NeedTasks = None,
    slo: Slo = None,
    price: Price = None,
    temperature: Temperature = None,
    max_tokens: CutTokens = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Let every answer run to its limit, so that both write equally much.")
    ] = False,
    minimum_effect: Annotated[
        float, typer.Option(help="A difference below this share of time does not matter.")
    ] = MINIMUM_EFFECT,
    timeout: RequestTimeout = 300.0,
    seed: Seed = 0,
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
            "--gate", help="Exit with 4 when the candidate is rejected: for CI. A void run exits with 3 anyway."
        ),
    ] = False,
) -> int:
    """Measure two servers in turns, running ones or such that are started for it, or read two results, and say whether the
    second is better."""
    if gate and scaling:
        raise UsageError(
            "--gate fails on a rejected candidate, and a comparison of scaling rejects nothing; leave one out"
        )
    console = Console(stderr=json)
    both = [header(text) for text in header_ or ()]
    if resume is not None and output is not None:
        raise UsageError("a run that goes on writes where it was; give --resume or --output")
    if rate is not None and concurrency is not None:
        raise UsageError("--concurrency is a closed loop and --rate an open one: give one of them")
    folder = resume or output or unused(_FOLDER / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-compare")
    loads = (1,) if concurrency is None else parse_loads(concurrency)
    quality = None
    if texts is not None or tasks is not None:
        quality = QualityAsked(
            texts=texts or BUNDLED,
            tasks=tasks,
            scorer=scorer,
            margin=margin,
            limits=asked_limits(max_perplexity, max_kl, max_kl_p99, min_same_first, require_tasks is not False),
        )
    elif scorer is not None or require_tasks is not None:
        raise UsageError("a scorer judges the answers to tasks; give them with --tasks FILE")
    settings = Settings(
        output=folder,
        baseline=SideAsked(
            sources=tuple(baseline),
            arm=_arm(baseline),
            model=baseline_model,
            declared=tuple(baseline_is or ()),
            headers=dict([*both, *(header(text) for text in baseline_header or ())]),
        ),
        candidate=SideAsked(
            sources=tuple(candidate),
            arm=_arm(candidate),
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
        concurrency=loads[0],
        loads=loads if len(loads) > 1 else (),
        rate_per_s=rate,
        quick=quick,
        budget_s=None if budget is None else parse_budget(budget),
        output_tokens=max_tokens,
        ignore_eos=ignore_eos,
        temperature=temperature,
        slo=slo,
        minimum_effect=minimum_effect,
        seed=seed,
        request_timeout_s=timeout,
        starts=starts,
        start_timeout_s=start_timeout,
        resume=resume is not None,
        quality=quality,
        price=None if price is None else parse_price(price),
    )
    left = "the servers that were started are gone" if settings.started else "the servers were left as they are"
    with TerminalProgress(
        console,
        lambda: f"no verdict was given, and {left}{to_go_on_with(folder)}",
        lambda: to_go_on_with(folder),
    ) as progress:
        outcome = run_comparison(settings, progress)
    if json:
        sys.stdout.write(to_json(outcome).decode())
    else:
        show(outcome, console)
    report = write_comparison(outcome, folder)  # after it was shown: a full disk must not cost the verdict
    console.print(f"[bold]Report:[/] {report}", soft_wrap=True)
    verdict = outcome.analysis.verdict
    if outcome.stopped is not None:
        return INTERRUPTED
    lost = outcome.sweep is not None and any(point.decision == "reject" for point in outcome.sweep.points)
    return of_verdict("reject" if gate and lost else verdict.decision, verdict.void, gate)


def _arm(sources: list[str]) -> Described | None:
    """What a side describes to be started; None of a URL or of results."""
    told = [source for source in sources if describes_an_arm(source)]
    if told and len(sources) > 1:
        raise UsageError(f"{told[0]!r} describes an arm to start; a side is one arm, one URL or several results")
    return describe(told[0]) if told else None
