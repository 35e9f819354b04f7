"""Options of the quality gate, the same wherever a candidate may be lossy."""

from typing import Annotated

import typer

from netgain.deciding.experiment.quality_gate import QualityLimits

LIMITS = QualityLimits()

Tasks = Annotated[str | None, typer.Option(help="JSONL with prompts and expected answers.", metavar="FILE")]
Scorer = Annotated[
    str | None,
    typer.Option(help="Shell command that reads an answer as JSON and prints a score from 0 to 1.", metavar="CMD"),
]
Margin = Annotated[float, typer.Option(help="By how much the mean task score may fall: 0.01 is one percentage point.")]
MaxPerplexity = Annotated[float, typer.Option(help="Limit of the candidate's perplexity over the baseline's.")]
MaxKl = Annotated[float, typer.Option(help="Limit of the mean KL divergence, nats per position.")]
MaxKlP99 = Annotated[float, typer.Option(help="Limit of its p99.")]
MinSameFirst = Annotated[float, typer.Option(help="Least share of positions with the same likeliest token.")]
RequireTasks = Annotated[bool, typer.Option("--require-tasks", help="Without a task set nothing passes.")]
NeedTasks = Annotated[
    bool | None,
    typer.Option(
        "--require-tasks/--without-tasks",
        help="Nothing lossy is adopted without a task set: your own alone counts, or texts alone do (with a caveat).",
        show_default="a task set is required; answers of a bundled workload count",
    ),
]


def asked_limits(perplexity: float, kl: float, kl_p99: float, same_first: float, tasks: bool) -> QualityLimits:
    """From the values of the options above. Raises UsageError."""
    return QualityLimits(perplexity_ratio=perplexity, kl_mean=kl, kl_p99=kl_p99, same_first=same_first, tasks=tasks)
