"""`netgain quality`: how well a running server predicts and answers, and what a second one beside it loses."""

import sys
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from netgain.cli.exit_codes import AGAINST, CANNOT_TELL, DONE
from netgain.cli.headers import header as read_header
from netgain.cli.lab_options import Headers, RequestTimeout
from netgain.cli.quality_options import (
    LIMITS,
    Margin,
    MaxKl,
    MaxKlP99,
    MaxPerplexity,
    MinSameFirst,
    RequireTasks,
    Scorer,
    Tasks,
    asked_limits,
)
from netgain.deciding.experiment.quality_gate import QualityGate, judge_quality
from netgain.deciding.report.progress import TerminalProgress
from netgain.documents import to_json
from netgain.errors import UsageError
from netgain.measuring.client.interrupt import run_interruptible
from netgain.measuring.quality.measure import QualityAsk, measure_quality
from netgain.measuring.quality.paired_scores import MARGIN
from netgain.measuring.quality.result import Quality
from netgain.measuring.quality.show import show
from netgain.measuring.quality.texts import BUNDLED, PIECE_CHARACTERS

_COLOURS = {"pass": "green", "fail": "red", "not enough": "yellow"}


def quality(
    url: Annotated[str, typer.Argument(help="The server, such as http://127.0.0.1:8000; with --against the baseline.")],
    against: Annotated[str | None, typer.Option(help="URL of the candidate, to be held against the first.")] = None,
    model: Annotated[str | None, typer.Option(help="A model that the server offers; by default its first.")] = None,
    against_model: Annotated[str | None, typer.Option(help="The same for the candidate.")] = None,
    texts: Annotated[
        str, typer.Option(help="Texts to score: bundled, none, or a file (plain text, or JSONL with a text per line).")
    ] = BUNDLED,
    tasks: Tasks = None,
    scorer: Scorer = None,
    scorer_timeout: Annotated[float, typer.Option(help="Seconds that the scorer has for one answer.")] = 30.0,
    margin: Margin = MARGIN,
    max_perplexity: MaxPerplexity = LIMITS.perplexity_ratio,
    max_kl: MaxKl = LIMITS.kl_mean,
    max_kl_p99: MaxKlP99 = LIMITS.kl_p99,
    min_same_first: MinSameFirst = LIMITS.same_first,
    require_tasks: RequireTasks = False,
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit with 4 when the candidate loses quality, 3 when it is not shown.")
    ] = False,
    most_texts: Annotated[int | None, typer.Option(min=1, help="Score only so many pieces of text.")] = None,
    piece: Annotated[int, typer.Option(help="Cut texts into pieces of at most so many characters.")] = PIECE_CHARACTERS,
    answers: Annotated[int, typer.Option(min=0, help="Greedy answers compared between both servers.")] = 24,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 2,
    timeout: RequestTimeout = 120.0,
    seed: Annotated[int, typer.Option(help="Seed of resampling and of requests.")] = 0,
    header: Headers = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> int:
    """Perplexity, task scores, and beside a second server KL divergence, equal answers and what is lost."""
    if gate and against is None:
        raise UsageError("--gate judges a candidate beside the first server; name it with --against URL")
    limits = asked_limits(max_perplexity, max_kl, max_kl_p99, min_same_first, require_tasks)
    ask = QualityAsk(
        url=url,
        against=against,
        model=model,
        against_model=against_model,
        texts=texts,
        most_texts=most_texts,
        piece_characters=piece,
        answers=answers,
        tasks=tasks,
        scorer=scorer,
        scorer_timeout_s=scorer_timeout,
        margin=margin,
        concurrency=concurrency,
        timeout_s=timeout,
        seed=seed,
        headers=dict(read_header(text) for text in header or ()),
    )
    console = Console(stderr=json)
    with TerminalProgress(console, lambda: "nothing was kept") as progress:
        found = run_interruptible(measure_quality(ask, progress))
    judged = None if found.comparison is None else judge_quality(found.comparison, limits)
    _print(found, judged, console, json)
    nothing = found.baseline.perplexity is None and (found.baseline.tasks is None or found.baseline.tasks.mean is None)
    if nothing or (gate and (judged is None or judged.state == "not enough")):
        return CANNOT_TELL
    return AGAINST if gate and judged is not None and judged.state == "fail" else DONE


class QualityDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. `gate` None: a single server was asked, so nothing was judged."""

    schema: Literal["netgain.quality"] = "netgain.quality"
    version: int = 2
    quality: Quality
    gate: QualityGate | None


def _print(found: Quality, judged: QualityGate | None, console: Console, json: bool) -> None:
    if json:
        sys.stdout.write(to_json(QualityDocument(quality=found, gate=judged)).decode())
        return
    show(found, console)
    if judged is not None:
        console.print(
            f"\n[bold {_COLOURS[judged.state]}]{judged.state.upper()}[/] {escape(judged.says)}", soft_wrap=True
        )
