"""What the ledger costs, and how much of a request's time it cannot name, on the default model.

python -m benchmarks.ledger [--json FILE]. An engine in this process decodes 16 requests at once, without and with n-gram
drafts; what the HTTP process does per request and per token is timed on the same records. Cost = time inside the ledger /
wall time of the steps.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks import _report
from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.export import JsonlWriter
from netgain.ledger.prometheus import Exporter
from netgain.ledger.records import EngineTrace, RequestRecord
from netgain.ledger.stage import Stage
from netgain.ledger.timeline import tile
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.runtime.build import build_engine
from netgain.serving.runtime.config import EngineConfig, SpeculationSettings

CONCURRENCY = 16
OUTPUT_TOKENS = 96
STEP_COST_BUDGET_S = 8.0
PROMPT = (
    "Copy this list and correct the spelling where it is wrong.\n"
    "The harbour opens at six in the mornning. The ferry leaves every ninety minutes. Bicycles travel free of charge.\n"
    "Item {index}: the harbour opens at six in the"
)


def main() -> None:
    arguments = _report.arguments(__doc__).parse_args()
    figures: dict[str, _report.Figure] = {}
    for name, speculation in (("", SpeculationSettings()), ("_ngram", SpeculationSettings(method="ngram"))):
        tally = asyncio.run(measure(EngineConfig(speculation=speculation)))
        figures |= {
            f"ledger_cost_ratio{name}": (tally.engine_s + tally.http_s) / tally.step_s,
            f"ledger_engine_us_per_step{name}": tally.engine_s / tally.steps * 1e6,
            f"ledger_http_us_per_token{name}": tally.http_s / tally.tokens * 1e6,
            f"step_ms{name}": tally.step_s / tally.steps * 1e3,
            f"unattributed_ratio_engine{name}": tally.unattributed_s / tally.request_s,
        }
    figures["ledger_cost_ratio"] = max(figures["ledger_cost_ratio"], figures["ledger_cost_ratio_ngram"])
    context = {"concurrency": CONCURRENCY, "output_tokens": OUTPUT_TOKENS}
    _report.write(arguments.json, figures, context, "The ledger's cost and completeness")


class Tally(NamedTuple):
    """Seconds over one timed round; `step_s` counts the engine's ledger as a part of its step, as it is."""

    steps: int
    tokens: int
    step_s: float
    engine_s: float
    http_s: float
    request_s: float
    unattributed_s: float


async def measure(config: EngineConfig) -> Tally:
    """Serve two rounds of CONCURRENCY requests; the second is timed."""
    clock, collector = WallClock(), Collector()
    built = build_engine(config, clock, collector)
    try:
        await built.engine.measure_step_cost(STEP_COST_BUDGET_S)
        prompts = [tuple(built.loaded.tokenizer.encode(PROMPT.format(index=index))) for index in range(CONCURRENCY)]
        with tempfile.TemporaryDirectory() as folder:
            writer = JsonlWriter(Path(folder) / "records.jsonl")
            await _round("warm-up", prompts, built.engine, collector, writer)
            tally = await _round("timed", prompts, built.engine, collector, writer)
            writer.close()
        return tally
    finally:
        built.engine.close()


async def _round(
    name: str, prompts: list[tuple[int, ...]], engine: Engine, collector: Collector, writer: JsonlWriter
) -> Tally:
    """The step loop stamps the end of its work before it writes it down, so what remains of `step` is the ledger's (and
    the making of the outputs, which is counted as if it were)."""
    clock = WallClock()
    exporter = Exporter()
    http = Collector(on_request=[exporter.request, writer.write])
    sampling = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        engine.submit(Request(id=f"{name}-{index}", prompt=prompt, sampling=sampling, received_s=clock.now()))
    received_s = clock.now()
    steps = tokens = 0
    step_s = engine_s = http_s = request_s = unattributed_s = 0.0
    while engine.has_work:
        outputs = await engine.step()
        ended_s = clock.now()
        record = collector.steps[-1]
        steps += 1
        step_s += ended_s - record.started_s
        engine_s += ended_s - record.finished_s
        for output in outputs:
            tokens += len(output.tokens)
            began_s = clock.now()
            exporter.gap(0.01, len(output.tokens))
            if output.trace is not None:
                http.request(_record(output.request_id, output.trace, received_s, ended_s))
            http_s += clock.now() - began_s
        for output in outputs:
            if output.trace is not None:
                request_s += ended_s - received_s
                unattributed_s += tile(output.trace.intervals, received_s, ended_s).get(Stage.UNATTRIBUTED, 0.0)
        exporter.engine({**msgspec.structs.asdict(engine.stats()), **collector.counters()})
    return Tally(steps, tokens, step_s, engine_s, http_s, request_s, unattributed_s)


def _record(request_id: str, trace: EngineTrace, received_s: float, finished_s: float) -> RequestRecord:
    """As the HTTP process puts it together: two tilings."""
    first_s = trace.first_token_s
    return RequestRecord(
        request_id=request_id,
        choice=0,
        model="default",
        received_s=received_s,
        first_token_s=first_s,
        finished_s=finished_s,
        finish_reason="length",
        prompt_tokens=trace.prompt_tokens,
        cached_tokens=trace.cached_tokens,
        output_tokens=trace.output_tokens,
        preemptions=trace.preemptions,
        stages=tile(trace.intervals, received_s, finished_s),
        ttft_stages=None if first_s is None else tile(trace.intervals, received_s, first_s),
        drafts=trace.drafts,
        own_s=trace.own_s,
        stall_s=trace.stall_s,
    )


if __name__ == "__main__":
    main()
