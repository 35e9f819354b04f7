"""What a streamed token costs outside the model: CPU of the HTTP process, of the engine process and of the measuring client.

python -m benchmarks.api_cost [--json FILE] [--rounds N] [--step-ms MS]. The server is the real one, down to its engine process;
only the executor is simulated, so a step takes its time without computing. In each round 16 clients and then 1 stream a chat
answer of 128 tokens with a running usage. `api_us_per_token_cN` is the median over rounds of CPU time (not wall time: other
load on the machine changes it little) of the HTTP process over the tokens streamed; `engine_` the same of the engine process with
scheduler, ledger and messages, `client_` of this process. A token's share of all that a request costs besides is part of it.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks import _report
from benchmarks._signals import cancelled_by_signals
from benchmarks._simulated_server import MODEL
from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
from netgain.errors import NetgainError, Unavailable
from netgain.measuring.client.options import Budget, Options
from netgain.measuring.client.run import run
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item, Message

STREAMS = (16, 1)
TOKENS = 128
ROUNDS = 7
STEP_MS = 20.0
START_S = 120.0
CPU_CLOCK = 2  # of a process, in Linux's numbers of clocks: to the nanosecond, where /proc counts in ticks of 10 ms

Cost = dict[str, float]  # seconds of CPU time by who spent them


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds that count ({ROUNDS})")
    parser.add_argument("--step-ms", type=float, default=STEP_MS, help=f"how long a step takes ({STEP_MS:g})")
    given = parser.parse_args()
    try:
        rounds = asyncio.run(cancelled_by_signals(measure(given.rounds, given.step_ms / 1e3)))
    except NetgainError as error:
        sys.exit(f"error: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("error: interrupted; the server is stopped")
    figures: dict[str, _report.Figure] = {}
    for streams, costs in rounds.items():
        for who in costs[0]:
            values = sorted(cost[who] for cost in costs)
            figures[f"{who}_us_per_token_c{streams}"] = statistics.median(values)
            figures[f"{who}_us_per_token_c{streams}_low"] = values[0]
            figures[f"{who}_us_per_token_c{streams}_high"] = values[-1]
    context = {"tokens": TOKENS, "rounds": given.rounds, "step_ms": given.step_ms, "load_average": psutil.getloadavg()}
    _report.write(given.json, figures, context, "CPU microseconds per streamed token")


async def measure(rounds: int, step_s: float) -> dict[int, list[Cost]]:
    """Microseconds per token by number of streams, one entry per round; a first round warms up. Raises Unavailable."""
    costs: dict[int, list[Cost]] = {streams: [] for streams in STREAMS}
    with tempfile.TemporaryDirectory() as folder:
        program = Program(
            command=lambda port: (
                sys.executable,
                "-m",
                "benchmarks._simulated_server",
                "server",
                f"{port}",
                f"{step_s}",
            ),
            shown=("benchmarks._simulated_server",),
        )
        server = LaunchedServer("simulated", program, Path(folder) / "server.log")
        try:
            await server.start()
            await server.ready(START_S)
            for number in range(rounds + 1):
                for streams in STREAMS:
                    cost = await stream(server.url, streams, f"r{number}")
                    if number:
                        costs[streams].append(cost)
        finally:
            await server.stop()
    return costs


async def stream(url: str, streams: int, name: str) -> Cost:
    """One round of `streams` answers at once."""
    (keeper,) = psutil.Process().children()
    (api,) = keeper.children()
    (engine,) = api.children()
    items = [
        Item(
            id=f"{name}-{place}",
            category="chat",
            max_tokens=TOKENS,
            messages=(Message("user", f"Tell me a long story, number {place} of {name}."),),
            ignore_eos=True,
        )
        for place in range(streams)
    ]
    options = Options(server_record=False, budget=Budget(cpu_share=2.0, lateness_p99_s=9.0, loop_lag_p99_s=9.0))
    before = cpu_s(api.pid, engine.pid)
    done = await run(url, MODEL, items, Closed(streams), options)
    after = cpu_s(api.pid, engine.pid)
    tokens = sum(record.output_tokens or 0 for record in done.records)
    if tokens != streams * TOKENS:
        raise Unavailable(f"{tokens} of {streams * TOKENS} tokens came: {[record.error for record in done.records]}")
    return {who: 1e6 * (after[who] - before[who]) / tokens for who in before}


def cpu_s(api_pid: int, engine_pid: int) -> Cost:
    """CPU time so far, all threads of each process together."""
    return {
        "api": time.clock_gettime(~api_pid << 3 | CPU_CLOCK),
        "engine": time.clock_gettime(~engine_pid << 3 | CPU_CLOCK),
        "client": time.process_time(),
    }


if __name__ == "__main__":
    main()
