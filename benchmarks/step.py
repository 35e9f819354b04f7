"""What a step costs beside the model itself, in plain greedy decoding on the default model.

python -m benchmarks.step [--json FILE]. An engine in this process decodes 1, 4, 16 and 32 requests; of each step the wall time
of `Engine.step` and the time inside the forward pass are taken: `step_overhead_ms_bN` is the median of their difference over
the steps, `_q1` and `_q3` its quartiles. `bytes_growth_per_step` is how much more memory Python holds after a step than before
it, over 200 steps at batch 16: the tokens of the answers are part of it.
"""

import asyncio
import gc
import statistics
import tracemalloc
from typing import NamedTuple

from benchmarks import _report
from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.runtime.build import build_engine
from netgain.serving.runtime.config import EngineConfig

BATCHES = (1, 4, 16, 32)
WARM_UP = 50
STEPS = 200
GROWTH_BATCH = 16
RECORDS_KEPT = 32  # steps whose records stay; full after the warm-up, so that they do not count as growth
PROMPT = (
    "The harbour opens at six in the morning. The ferry leaves every ninety minutes. Bicycles travel free of charge.\n"
) * 8


class Timed(NamedTuple):
    """One step, in seconds."""

    wall_s: float
    forward_s: float


def main() -> None:
    arguments = _report.arguments(__doc__).parse_args()
    figures, context = asyncio.run(measure())
    _report.write(arguments.json, figures, context, "What a step costs beside the model")


async def measure() -> tuple[dict[str, _report.Figure], dict[str, object]]:
    """Figures, and what they are about."""
    clock, collector = WallClock(), Collector(steps_kept=RECORDS_KEPT)
    built = build_engine(EngineConfig(), clock, collector)
    figures: dict[str, _report.Figure] = {}
    try:
        prompt = built.loaded.tokenizer.encode(PROMPT)
        for batch in BATCHES:
            await _start(built.engine, clock, prompt, batch)
            figures |= _figures(batch, [await _step(built.engine, clock, collector) for _ in range(STEPS)])
            await _end(built.engine, batch)
        figures["bytes_growth_per_step"] = await _growth(built.engine, clock, prompt)
    finally:
        built.engine.close()
    return figures, {"steps": STEPS, "prompt_tokens": len(prompt), "growth_batch": GROWTH_BATCH, "engine": built.info}


def _figures(batch: int, steps: list[Timed]) -> dict[str, _report.Figure]:
    q1, median, q3 = statistics.quantiles([(step.wall_s - step.forward_s) * 1e3 for step in steps], n=4)
    return {
        f"step_overhead_ms_b{batch}": median,
        f"step_overhead_ms_b{batch}_q1": q1,
        f"step_overhead_ms_b{batch}_q3": q3,
        f"step_ms_b{batch}": statistics.median(step.wall_s for step in steps) * 1e3,
        f"forward_ms_b{batch}": statistics.median(step.forward_s for step in steps) * 1e3,
    }


async def _start(engine: Engine, clock: WallClock, prompt: list[int], batch: int) -> None:
    """Requests that will decode for longer than anybody looks."""
    sampling = SamplingParams(max_tokens=2 * (WARM_UP + STEPS), temperature=0.0, ignore_eos=True)
    for index in range(batch):
        prompt_ids = (*prompt, 100 + index)
        engine.submit(Request(id=f"{index}", prompt=prompt_ids, sampling=sampling, received_s=clock.now()))
    for _ in range(WARM_UP):
        await engine.step()


async def _end(engine: Engine, batch: int) -> None:
    for index in range(batch):
        engine.abort(f"{index}")
    while engine.has_work:
        await engine.step()


async def _step(engine: Engine, clock: WallClock, collector: Collector) -> Timed:
    began_s = clock.now()
    await engine.step()
    wall_s = clock.now() - began_s
    forward_s = collector.steps[-1].forward_s
    assert forward_s is not None
    return Timed(wall_s, forward_s)


async def _growth(engine: Engine, clock: WallClock, prompt: list[int]) -> float:
    await _start(engine, clock, prompt, GROWTH_BATCH)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(STEPS):
        await engine.step()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await _end(engine, GROWTH_BATCH)
    return (after - before) / STEPS


if __name__ == "__main__":
    main()
