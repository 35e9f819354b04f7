"""Time per output token of one stream, netgain beside vLLM's CPU build: same machine, model and prompts, in one run.

python -m benchmarks.decode [--json FILE] [--vllm-python PATH] [--model-folder DIR] [--vllm-dtype float32] [--rounds N].
`netgain serve` answers with the shipped quantised file as it is (auto), then in bf16; in each pass both servers are alive and
one is loaded at a time, A B B A per round of prompts: 128 tokens in, 128 greedy tokens out, the end token ignored.
`decode_tpot_ms_*` is the median over requests, `decode_c1_*_vs_vllm_cpu` vLLM's median over netgain's of the same pass (above
1 netgain is faster), `_low` and `_high` the 95 % interval of the median of the ratios by prompt. Without a vLLM the two forms of
netgain run beside each other and vLLM's figures are null. `decode_foreign_cores_*`: cores that other processes used.
"""

import asyncio
import contextlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks import _report
from benchmarks._vllm import LaunchedVllm
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.conduct import Block, Design, Trial, conduct
from netgain.deciding.experiment.launched import LaunchedNetgain
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, pair
from netgain.deciding.experiment.statistics import median_effect
from netgain.errors import NetgainError, Unavailable, UsageError
from netgain.measuring.client.options import Options
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.workload.item import Item

T = TypeVar("T")

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 128
ROUND_SIZE = 2  # prompts that one server answers in a row
MODEL = "decoded"  # the name that every server is told to serve under
NETGAIN_START_S = 300.0
VLLM_START_S = 900.0  # it compiles while starting
CONVERT_S = 300.0
# Each of these with a space before it is one token of the default model, and so is the first word of a prompt.
FIRST = "The"
WORDS = """
time people water house night river garden morning road market village winter school letter light story train harbour mountain
window bread music summer island forest city friend doctor teacher paper kitchen evening street bridge field horse stone tree
sea wind rain snow fire door table book old new small long green white quiet early large young cold warm bright deep near under
over along after before while because often never always
"""


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--vllm-python", type=Path, metavar="PATH", help="a Python that has vLLM's CPU build installed")
    parser.add_argument(
        "--model-folder", type=Path, metavar="DIR", help="the default model in bf16, for vLLM; else made"
    )
    parser.add_argument(
        "--vllm-dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="what vLLM computes in; where the CPU multiplies no bf16, float32 may be faster",
    )
    parser.add_argument("--rounds", type=int, default=6, help="rounds of prompts per pass, each A B B A")
    given = parser.parse_args()
    try:
        work = measure(given.vllm_python, given.model_folder, given.vllm_dtype, given.rounds)
        figures, context = asyncio.run(cancelled_by_signals(work))
    except NetgainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("error: interrupted; the servers are stopped")
    _report.write(given.json, figures, context, "Decode at batch 1")


async def cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it on SIGTERM as asyncio does on SIGINT: servers left behind disturb whatever runs next."""
    task = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            loop.add_signal_handler(number, task.cancel)
    return await task


async def measure(
    vllm_python: Path | None, folder: Path | None, vllm_dtype: str, rounds: int
) -> tuple[dict[str, _report.Figure], dict[str, object]]:
    """The figures and the settings they hold for. Raises UsageError and Unavailable."""
    if rounds < 1:
        raise UsageError(f"--rounds is {rounds}; it must be at least 1")
    design = Design(groups=prompts(rounds), concurrency=1)
    context: dict[str, object] = {
        "rounds": rounds,
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "load_average_before": psutil.getloadavg(),
    }
    async with contextlib.AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        auto = netgain("auto", logs)
        bf16 = netgain("bf16", logs, "--set", "engine.model.dtype=bf16")
        if vllm_python is None:
            await up(stack, bf16, NETGAIN_START_S)
            await up(stack, auto, NETGAIN_START_S)
            trial = await run_pass(bf16, auto, design)
            times = {"auto": tpots_ms(trial, CANDIDATE), "bf16": tpots_ms(trial, BASELINE), "vllm_cpu": []}
            figures = figures_of(times) | compared("auto", None) | compared("bf16", None)
            figures |= disturbance("auto", trial.blocks) | disturbance("bf16", trial.blocks)
        else:
            model = (folder or convert(logs / "model")).absolute()
            vllm = LaunchedVllm(vllm_python.absolute(), model, vllm_dtype, MODEL, logs / "vllm.log")
            await up(stack, vllm, VLLM_START_S)
            context |= {
                "vllm": await vllm.version(),
                "vllm_command": vllm.command,
                "vllm_environment": vllm.environment,
            }
            times, figures = {"vllm_cpu": []}, {}
            for arm in (auto, bf16):
                async with contextlib.AsyncExitStack() as one:
                    await up(one, arm, NETGAIN_START_S)
                    trial = await run_pass(vllm, arm, design)
                times[arm.name] = tpots_ms(trial, CANDIDATE)
                times["vllm_cpu"] += tpots_ms(trial, BASELINE)
                figures |= compared(arm.name, trial) | disturbance(arm.name, trial.blocks)
            figures = figures_of(times) | figures
    return figures, context | {"load_average_after": psutil.getloadavg()}


def netgain(name: str, logs: Path, *flags: str) -> LaunchedNetgain:
    return LaunchedNetgain(name, ("default", "--set", f"engine.model.name={MODEL}", *flags), logs / f"{name}.log")


async def up(stack: contextlib.AsyncExitStack, arm: Arm, within_s: float) -> None:
    """Start `arm` and wait for it; leaving `stack` stops it, also when this fails."""
    stack.push_async_callback(arm.stop)
    await arm.start()
    await arm.ready(within_s)


async def run_pass(baseline: Arm, candidate: Arm, design: Design) -> Trial:
    """Both arms on every round. Raises Unavailable when an answer is not what was asked for: it could not be compared."""

    def told(block: Block, blocks: int) -> None:
        arm = baseline if block.arm == BASELINE else candidate
        print(f"block {block.index + 1}/{blocks} {arm.name}: {block.seconds:.1f} s", file=sys.stderr)

    options = Options(server_record=False)
    trial = await conduct({BASELINE: baseline, CANDIDATE: candidate}, design, MODEL, options, "decode", told)
    names = {BASELINE: baseline.name, CANDIDATE: candidate.name}
    for seen in trial.observations:
        if problem := wrong(seen.record):
            raise Unavailable(f"{names[seen.arm]} answered {seen.record.item_id} wrongly: {problem}")
    return trial


def wrong(record: ClientRecord) -> str | None:
    """What makes this answer useless for the comparison, or None."""
    if record.error is not None:
        return record.error
    if record.tokens_source != "usage":
        return f"its tokens were counted by {record.tokens_source!r}, not by the server's running usage"
    counts = (record.prompt_tokens, record.output_tokens)
    if counts != (PROMPT_TOKENS, OUTPUT_TOKENS):
        return f"{counts[0]} prompt and {counts[1]} output tokens instead of {PROMPT_TOKENS} and {OUTPUT_TOKENS}"
    return None


def tpots_ms(trial: Trial, arm: str) -> list[float]:
    return [
        seen.record.tpot_s * 1e3 for seen in trial.observations if seen.arm == arm and seen.record.tpot_s is not None
    ]


def figures_of(times_ms: dict[str, list[float]]) -> dict[str, _report.Figure]:
    """Median, and how far single requests lie from it: half the distance between the quartiles, relative."""
    figures: dict[str, _report.Figure] = {}
    for name in ("auto", "bf16", "vllm_cpu"):
        times = times_ms[name]
        median = statistics.median(times) if times else None
        figures[f"decode_tpot_ms_{name}"] = median
        if median is not None and len(times) > 1:
            lower, _, upper = statistics.quantiles(times, n=4)
            figures[f"decode_tpot_spread_{name}"] = (upper - lower) / 2 / median
    return figures


def compared(name: str, trial: Trial | None) -> dict[str, _report.Figure]:
    """vLLM's time over netgain's, both from `trial`; None when vLLM did not run."""
    key = f"decode_c1_{name}_vs_vllm_cpu"
    if trial is None:
        return {key: None}
    ratio = statistics.median(tpots_ms(trial, BASELINE)) / statistics.median(tpots_ms(trial, CANDIDATE))
    effect = median_effect(pair(trial.observations, lambda record: record.tpot_s), seed=0)
    return {
        key: ratio,
        f"{key}_low": effect.low if effect else None,
        f"{key}_high": effect.high if effect else None,
    }


def disturbance(name: str, blocks: Sequence[Block]) -> dict[str, _report.Figure]:
    """How much of the machine others had during a pass, and how many blocks the client itself held up."""
    foreign = [block.foreign_cpu for block in blocks if block.foreign_cpu is not None]
    idle = [share for block in blocks for share in block.idle_cpu.values()]
    return {
        f"decode_foreign_cores_{name}": statistics.median(foreign) if foreign else None,
        f"decode_idle_server_cores_{name}": max(idle) if idle else None,
        f"decode_void_blocks_{name}": sum(block.client_void is not None for block in blocks),
    }


def prompts(rounds: int) -> tuple[tuple[Item, ...], ...]:
    """`rounds` rounds of prompts, always the same ones, no two alike."""
    source, words = random.Random(0), WORDS.split()

    def item(place: int) -> Item:
        text = " ".join([FIRST, *source.choices(words, k=PROMPT_TOKENS - 1)])
        return Item(id=f"words-{place}", category="words", max_tokens=OUTPUT_TOKENS, prompt=text, ignore_eos=True)

    return tuple(tuple(item(group * ROUND_SIZE + place) for place in range(ROUND_SIZE)) for group in range(rounds))


def convert(folder: Path) -> Path:
    """The default model as a bf16 folder, which vLLM can read. Raises Unavailable."""
    command = [sys.executable, "-m", "netgain.cli.main", "model", "convert", "default", str(folder), "--dtype", "bf16"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CONVERT_S)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the model was not converted within {CONVERT_S:g} s; give --model-folder") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"the model could not be converted for vLLM: {last}")
    return folder


if __name__ == "__main__":
    main()
