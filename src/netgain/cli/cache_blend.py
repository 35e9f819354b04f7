"""`netgain cache blend`: what joining chunks that were computed apart saves and loses for a model, and the ratio that passes."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from netgain.cost import kept
from netgain.errors import UsageError
from netgain.folders import cache_folder


def blend(
    model: Annotated[str, typer.Argument(help="'default', a folder, a .gguf file or a Hugging Face id.")] = "default",
    questions: Annotated[
        Path | None,
        typer.Option(help="JSONL of your own: chunks, question and answers (the right one first). Default: generated."),
    ] = None,
    count: Annotated[int, typer.Option(min=4, max=10_000, help="How many questions are generated.")] = 40,
    chunks: Annotated[int, typer.Option(min=2, max=12, help="Chunks per generated question.")] = 6,
    ratios: Annotated[str, typer.Option(help="Shares of tokens computed anew, 0 to 1.")] = "0,0.05,0.1,0.2,0.4,0.7",
    first: Annotated[str, typer.Option(help="Baselines: so many first tokens of each chunk instead.")] = "8,32",
    max_kl: Annotated[float, typer.Option(min=0, help="Gate: KL per token of the answer, nats.")] = 0.05,
    max_lost: Annotated[float, typer.Option(min=0, max=1, help="Gate: share of right answers lost.")] = 0.1,
    answer_tokens: Annotated[int, typer.Option(min=1, max=256, help="Tokens of each answer that are compared.")] = 8,
    dtype: Annotated[str, typer.Option(help="How weights are kept, as engine.model.dtype.")] = "auto",
    kv_dtype: Annotated[str, typer.Option(help="How KV is kept, as engine.model.kv_dtype.")] = "auto",
    activations: Annotated[str, typer.Option(help="What they are rounded to, as engine.model.activations.")] = "auto",
    keep: Annotated[
        bool, typer.Option(help="Keep the result, which engine.blending.ratio=calibrated then uses.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Calibrate blending: quality by ratio, and the smallest ratio that passes the gate."""
    from netgain.cli.cache_blend_run import calibrate
    from netgain.serving.runtime.blending.questions import generated, read_questions
    from netgain.serving.tiers.blending.calibration import Gate, calibration_file

    asked = generated(count, chunks) if questions is None else read_questions(questions)
    if len(asked) < 4:
        raise UsageError(f"{len(asked)} questions say nothing of the spread between questions: give at least 4")
    wanted = _numbers("--ratios", ratios, 0.0, 1.0)
    firsts = [int(number) for number in _numbers("--first", first, 1, 4096)]
    gate = Gate(kl=max_kl, score=max_lost)
    weights = (dtype, activations)
    found, namespace = calibrate(model, weights, kv_dtype, asked, wanted, firsts, gate, answer_tokens, time.time())
    if as_json:
        sys.stdout.write(msgspec.json.encode({**_fields(found), "ratio": found.ratio}).decode() + "\n")
    else:
        _show(found)
    if keep:
        try:
            kept.write(calibration_file(cache_folder(), namespace), found)
        except OSError as error:
            raise UsageError(f"the result cannot be kept in {cache_folder()}: {error.strerror}") from error


def _fields(found: msgspec.Struct) -> dict[str, Any]:
    return dict(msgspec.to_builtins(found))


def _numbers(option: str, text: str, low: float, high: float) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UsageError(f"{option} takes numbers with commas between, not {text!r}") from error
    if not all(low <= number <= high for number in numbers):
        raise UsageError(f"{option} takes numbers from {low:g} to {high:g}, not {text!r}")
    return sorted(set(numbers))


def _show(found: Any) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 100)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("joined", "computed anew", "KL / token (to)", "same choice", "right", "lost (to)", "TTFT", "gate"):
        table.add_column(name, justify="left" if name == "joined" else "right", no_wrap=True)
    for point in found.points:
        lost = point.score_lost
        name = f"first {point.first}" if point.ratio is None else "naive" if point.ratio == 0 else f"{point.ratio:.0%}"
        table.add_row(
            name,
            f"{point.recomputed:.0%}",
            f"{point.kl[0]:.3f} ({point.kl[2]:.3f})",
            f"{point.same_top:.0%}",
            f"{point.score:.0%}",
            "-" if lost is None else f"{lost[0]:+.0%} ({lost[2]:+.0%})",
            f"{point.ttft_ratio:.2f} x",
            "passes" if point.passes(found.gate) else "fails",
        )
    console.print(table)
    whole = found.whole_score
    console.print(
        f"{found.prompts} questions of {found.chunks} chunks, {found.prompt_tokens} tokens in the median; computed whole, "
        f"{whole[0]:.0%} are right (at least {whole[1]:.0%}), {found.chance:.0%} by chance.",
        highlight=False,
    )
    if not found.judged:
        console.print("Model too weak to judge: it does not answer above chance, so its laws alone decide.")
    ratio = found.ratio
    said = "1, the exact prefill: nothing below it passes" if ratio == 1 else f"{ratio:g}, the smallest that passes"
    console.print(f"Ratio for this model: {said}. Below 1 the answers may differ (lossy).", highlight=False)
