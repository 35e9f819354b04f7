"""`netgain decide`: the main job in one command."""

import datetime
import re
import shlex
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from netgain.cli.exit_codes import DONE, of_verdict
from netgain.cli.headers import header as read_header
from netgain.cli.lab_options import CutTokens, Headers, Price, RequestTimeout, Seed, Slo, Temperature, Workload
from netgain.cli.quality_options import NeedTasks
from netgain.cost.price import parse_price
from netgain.cost.quantity import size
from netgain.deciding.decide.budget import parse_budget
from netgain.deciding.decide.loop import decide_several as run_loop
from netgain.deciding.decide.prepared import to_go_on_with
from netgain.deciding.decide.settings import Settings, parse_loads
from netgain.deciding.experiment.arms.hooks import read_hooks
from netgain.deciding.experiment.arms.starting import Starting
from netgain.deciding.experiment.verdict import MINIMUM_EFFECT
from netgain.deciding.report.candidates_text import print_candidates
from netgain.deciding.report.candidates_write import write_candidates
from netgain.deciding.report.progress import TerminalProgress
from netgain.deciding.report.several import candidates_document
from netgain.deciding.report.terminal import print_summary
from netgain.deciding.report.write import write_report
from netgain.deciding.technique.codec_asked import CodecAsked, parse_codec
from netgain.deciding.technique.tier_asked import parse_tier
from netgain.errors import UsageError
from netgain.measuring.observe.names import Engine
from netgain.plain_file import unused
from netgain.serving.tiers.codecs.names import unknown


def report_folder(workload: str, now: datetime.datetime) -> Path:
    """The default folder of a report: when, and on what; the time that a recording's name begins with is left out."""
    name = re.sub(r"^\d{8}-\d{6}-", "", Path(workload).stem)
    return Path("netgain-reports") / f"{now:%Y%m%d-%H%M%S}-{name}"


def decide(
    model: Annotated[str, typer.Option(help="'default', a folder, a .gguf file or a Hugging Face id.")] = "default",
    workload: Workload = "edit",
    concurrency: Annotated[
        str, typer.Option(help="Requests in flight, or several such as 1,2,4,8: up to which load does it pay?")
    ] = "1",
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="Two server starts per arm, few prompts, short outputs: minutes.")
    ] = False,
    technique: Annotated[
        list[str] | None,
        typer.Option(help="Try this technique instead of the one with the highest predicted gain. May be repeated."),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            help="Try so many, the best predicted first, and say which to turn on; by default all that are named, or one.",
            show_default=False,
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            help="A draft to consider: a folder of netgain draft train, a model, a head's checkpoint, or mtp.",
            show_default=False,
        ),
    ] = None,
    draft_survival: Annotated[
        str | None,
        typer.Option(
            help="Which shares of its drafts up to position 1, 2, ... all stand, where its files do not say: 0.6,0.35.",
            show_default=False,
        ),
    ] = None,
    draft_cost: Annotated[
        float | None,
        typer.Option(help="A pass of the draft as a share of a decode step, such as 0.1.", show_default=False),
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(
            help="Which tier --technique kv-tiers tries: dram (default), disk:FOLDER or lmcache, each with :SIZE if you like.",
            show_default=False,
        ),
    ] = None,
    tier_reset: Annotated[
        str | None,
        typer.Option(
            help="Shell command that empties what runs apart (LMCache, its store) before each start.",
            metavar="CMD",
            show_default=False,
        ),
    ] = None,
    codec: Annotated[
        str | None,
        typer.Option(
            help="Which codec --technique kv-compression(-lossy) tries; for other engines with what it saves and takes: "
            "cachegen:ratio=2.5,encode=1GB/s,decode=2GB/s,url=redis://HOST:PORT.",
            show_default=False,
        ),
    ] = None,
    kv_token_bytes: Annotated[
        str | None,
        typer.Option(help="What a token's KV takes, where the engine does not tell: 24KiB.", show_default=False),
    ] = None,
    slo: Slo = None,
    price: Price = None,
    temperature: Temperature = None,
    max_tokens: CutTokens = None,
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
    require_tasks: NeedTasks = None,
    seed: Seed = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A server setting for both arms. May be repeated."),
    ] = None,
    engine: Annotated[str, typer.Option(help="netgain, vllm, sglang or llama.cpp: what both arms run.")] = "netgain",
    python: Annotated[
        Path | None, typer.Option(help="The interpreter of the environment that has the engine.", show_default=False)
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            help="The command line that starts the engine, with {model}, {port} and {flags} where they belong.",
            show_default=False,
        ),
    ] = None,
    flags: Annotated[str, typer.Option(help="Flags of the engine for both arms, in one text.")] = "",
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="A variable for both arms. May be repeated."),
    ] = None,
    hooks: Annotated[
        Path | None,
        typer.Option(
            help="YAML or TOML file of shell commands that operate an arm (kubectl, helm, Slurm).", show_default=False
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Devices that each arm occupies, for device-hours and costs (one is assumed).")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Most device-hours of the experiment, such as 2h: it is made smaller, or refused."),
    ] = None,
    start_timeout: Annotated[
        float | None,
        typer.Option(min=1.0, help="Seconds that a server may take to start; 300, and 1200 for other engines."),
    ] = None,
    header: Headers = None,
    timeout: RequestTimeout = 120.0,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a run that ended before its end: go on with the same settings.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for report.html, decision.json and logs; by default a new one in netgain-reports.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Measure a baseline, try the technique that should help most, and say whether it pays."""
    console = Console()
    if resume is not None and output is not None:
        raise UsageError("a run that goes on writes where it was; give --resume or --output")
    folder = resume or output or unused(report_folder(workload, datetime.datetime.now()))
    loads = parse_loads(concurrency)
    settings = Settings(
        output=folder,
        model=model,
        workload=workload,
        concurrency=loads[0],
        loads=loads if len(loads) > 1 else (),
        quick=quick,
        techniques=tuple(technique or ()),
        candidates=candidates,
        seed=seed,
        slo=slo,
        temperature=temperature,
        minimum_effect=minimum_effect,
        output_tokens=max_tokens,
        texts=texts,
        tasks=tasks,
        scorer=scorer,
        require_tasks=require_tasks,
        serve_flags=tuple(part for setting in set_ or () for part in ("--set", setting)),
        engine=_engine_named(engine),
        starting=Starting(
            python=None if python is None else str(python),
            command=command,
            flags=tuple(_split(flags)),
            environment=dict(_variable(one) for one in env or ()),
            devices=devices,
        ),
        hooks=None if hooks is None else read_hooks(hooks),
        request_timeout_s=timeout,
        start_timeout_s=start_timeout or (300.0 if engine == "netgain" else 1200.0),
        budget_s=None if budget is None else parse_budget(budget),
        resume=resume is not None,
        draft=draft,
        draft_survival=None if draft_survival is None else parse_shares(draft_survival),
        draft_cost=draft_cost,
        price=None if price is None else parse_price(price),
        tier=None if tier is None else parse_tier(tier),
        tier_reset=tier_reset,
        codec=None if codec is None else _codec_named(codec, engine),
        kv_token_bytes=None if kv_token_bytes is None else parse_token_bytes(kv_token_bytes),
        headers=dict(read_header(text) for text in header or ()),
    )
    with TerminalProgress(
        console,
        lambda: f"the servers that were started are gone{to_go_on_with(folder)}",
        lambda: to_go_on_with(folder),
    ) as progress:
        found = run_loop(settings, progress)
    document = candidates_document(found) if found.several else None
    outcome = found.outcomes[0] if found.outcomes else found.base
    if document is None:
        print_summary(outcome, console)
    else:
        print_candidates(document, console)
    # after it was shown: a full disk must not cost the verdict
    report = write_report(outcome, folder) if document is None else write_candidates(found, folder)
    console.print(f"[bold]Report:[/] {report}", soft_wrap=True)
    if document is not None:
        return of_verdict("adopt" if document.adopted else "inconclusive", document.void)
    if outcome.analysis is None:  # there was nothing to try, which is an answer
        return DONE
    return of_verdict(outcome.analysis.verdict.decision, outcome.analysis.verdict.void)


def _codec_named(text: str, engine: str) -> CodecAsked:
    """Those of netgain are known here, before anything is measured."""
    asked = parse_codec(text)
    if engine == "netgain" and (said := unknown(asked.name)):
        raise UsageError(said)
    return asked


def _engine_named(name: str) -> Engine:
    """Raises UsageError: for the URL of a running server with what can be done with one."""
    known: tuple[Engine, ...] = get_args(Engine)
    if name.startswith(("http://", "https://")):
        raise UsageError(
            f"{name} is a server that runs already, and switching a technique on needs starting one: a running server can be "
            "measured only (netgain measure URL); to decide between two that run: netgain compare"
        )
    for engine in known:
        if name in (engine, engine.replace(".", ""), engine.replace(".", "_")):
            return engine
    raise UsageError(f"there is no engine {name!r}; known are {', '.join(known)}")


def parse_shares(text: str) -> tuple[float, ...]:
    """Raises UsageError for what are no numbers; their meaning is checked where they are used."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--draft-survival is {text!r}; give shares such as 0.6,0.35") from error


def parse_token_bytes(text: str) -> int:
    """Raises UsageError."""
    told = size(text).value
    if told < 1.0:
        raise UsageError(f"--kv-token-bytes is {text}; a token's KV takes at least a byte")
    return round(told)


def _split(flags: str) -> list[str]:
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise UsageError(f"the flags {flags!r} cannot be read as a shell would ({error})") from error


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"the variable {text!r} is not NAME=VALUE")
    return name, value
