"""What the ledger costs, how much of a request's time it cannot name, and whether a client agrees, on the default model.

python -m benchmarks.ledger [--json FILE]. Cost: an engine in this process decodes 16 requests at once, without and with
n-gram drafts; what the HTTP process does per request and per token is timed on the same records; the figure is the time
inside the ledger over the wall time of the steps. Completeness: `netgain serve` on loopback, at 1 and at 16 requests at once:
`unattributed_ratio` is the unnamed part of the requests' time, `server_client_gap_ms` what the client measured beyond the
server's own sum (median at 1 request at once, opening the connection not counted).
"""

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec

from benchmarks import _report
from netgain.deciding.experiment.arms.netgain import launched_netgain
from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.export import JsonlWriter
from netgain.ledger.prometheus import Exporter
from netgain.ledger.records import EngineTrace, RequestRecord
from netgain.ledger.stage import Stage
from netgain.ledger.timeline import tile
from netgain.measuring.client.endpoint import list_models
from netgain.measuring.client.options import Options
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.client.run import run
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.load import load_workload
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


SERVER_START_S = 300.0
REQUESTS = {1: 12, CONCURRENCY: 32}  # requests by how many run at once


def main() -> None:
    arguments = _report.arguments(__doc__).parse_args()
    figures: dict[str, _report.Figure] = {}
    costs = []
    for name, speculation in (("plain", SpeculationSettings()), ("ngram", SpeculationSettings(method="ngram"))):
        tally = asyncio.run(measure_cost(EngineConfig(speculation=speculation)))
        costs.append((tally.engine_s + tally.http_s) / tally.step_s)
        figures |= {
            f"ledger_cost_ratio_{name}": costs[-1],
            f"ledger_engine_us_per_step_{name}": tally.engine_s / tally.steps * 1e6,
            f"ledger_http_us_per_token_{name}": tally.http_s / tally.tokens * 1e6,
            f"step_ms_{name}": tally.step_s / tally.steps * 1e3,
        }
    served = asyncio.run(serve())
    for concurrency, records in served.items():
        figures |= {
            f"unattributed_ratio_c{concurrency}": _unattributed(records),
            f"server_client_gap_ms_c{concurrency}": statistics.median(map(_gap_s, records)) * 1e3,
            f"server_client_gap_max_ms_c{concurrency}": max(map(_gap_s, records)) * 1e3,
        }
    figures = {
        "ledger_cost_ratio": max(costs),
        "unattributed_ratio": _unattributed([record for records in served.values() for record in records]),
        "server_client_gap_ms": figures["server_client_gap_ms_c1"],
        **figures,
    }
    context = {"concurrency": CONCURRENCY, "output_tokens": OUTPUT_TOKENS}
    _report.write(arguments.json, figures, context, "The ledger's cost and completeness")


async def serve() -> dict[int, list[ClientRecord]]:
    """What the client saw of a real server, by concurrency; a first run warms it up."""
    items = [
        msgspec.structs.replace(item, max_tokens=OUTPUT_TOKENS, ignore_eos=True) for item in load_workload("chat").items
    ]
    options = Options(server_record=True)
    records: dict[int, list[ClientRecord]] = {}
    with tempfile.TemporaryDirectory() as folder:
        server = launched_netgain("benchmark", ("default",), Path(folder) / "server.log")
        try:
            await server.start()
            await server.ready(SERVER_START_S)
            model = await _model(server.url)
            await run(server.url, model, items[-2:], Closed(1), options)
            for concurrency, count in REQUESTS.items():
                done = await run(server.url, model, items[:count], Closed(concurrency), options)
                records[concurrency] = [record for record in done.records if record.ok and record.server is not None]
                if len(records[concurrency]) < count:
                    raise SystemExit(f"{count - len(records[concurrency])} of {count} requests failed: {done.records}")
        finally:
            await server.stop()
    return records


async def _model(url: str) -> str:
    async with aiohttp.ClientSession() as session:
        return (await list_models(session, url))[0].id


def _gap_s(record: ClientRecord) -> float:
    """What the client measured beyond the server's sum."""
    assert record.server is not None
    return record.finished_s - record.sent_s - (record.connect_s or 0.0) - sum(record.server.stages.values())


def _unattributed(records: Sequence[ClientRecord]) -> float:
    stages = [record.server.stages for record in records if record.server is not None]
    total_s = sum(sum(seconds.values()) for seconds in stages)
    return sum(seconds.get(Stage.UNATTRIBUTED, 0.0) for seconds in stages) / total_s


class Tally(NamedTuple):
    """Seconds over one timed round; `step_s` counts the engine's ledger as a part of its step, as it is."""

    steps: int
    tokens: int
    step_s: float
    engine_s: float
    http_s: float


async def measure_cost(config: EngineConfig) -> Tally:
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
    step_s = engine_s = http_s = 0.0
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
        exporter.engine({**msgspec.structs.asdict(engine.stats()), **collector.counters()})
    return Tally(steps, tokens, step_s, engine_s, http_s)


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
