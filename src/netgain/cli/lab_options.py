"""Options that several commands of the lab have, so that each is called, and explained, the same everywhere."""

from typing import Annotated

import typer

Workload = Annotated[
    str,
    typer.Option(
        help="edit, chat, shared-prefix, documents, or the path of a file: JSONL with your own prompts, or a recording."
    ),
]
Slo = Annotated[
    str | None, typer.Option(help="Limits that must hold, such as ttft=500ms,itl.p99=50ms (p95 where not said).")
]
Price = Annotated[
    str | None,
    typer.Option(
        metavar="AMOUNT[CURRENCY]", help="Of one device for an hour, such as 2.49USD: what tokens and requests cost."
    ),
]
Temperature = Annotated[float | None, typer.Option(help="Overrides the workload's; 0 is greedy.")]
CutTokens = Annotated[int | None, typer.Option(help="Cut outputs at this many tokens; 64 with --quick.")]
RequestTimeout = Annotated[float, typer.Option(min=0.1, help="Seconds that one request may take.")]
Seed = Annotated[int, typer.Option(help="Seed of sampling and of the statistics.")]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header", metavar="NAME=VALUE", help="Sent with every request, such as an API key. May be repeated."
    ),
]
