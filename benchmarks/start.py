"""How long `netgain serve default` takes from the launch of its process to the first generated token, and where that goes.

python -m benchmarks.start [--json FILE] [--times N]. Every launch is the same as in benchmarks.peers: the server on a free port,
polled until its health answers, then one request of 16 tokens in and one out. `cold_start_s` is the median over launches with
what netgain caches in place (model, kernels, digests); one launch before them, which is not counted, puts it there. The parts
that follow each other, medians, too: until the engine process exists, until it is ready, until the server is, the first answer.
`cpu` counts the seconds that a process and its children computed until then: two processes, so they may exceed the wall time.
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
from benchmarks.peers.prompts import items
from netgain.deciding.experiment.arms.netgain import launched_netgain
from netgain.errors import NetgainError, Unavailable, UsageError
from netgain.measuring.client.options import Options
from netgain.measuring.client.run import run
from netgain.measuring.workload.arrivals import Closed

MODEL = "started"
PROMPT_TOKENS = 16
START_S = 300.0
ENGINE_READY = "is ready (pid "  # how the server's log says it; each line begins with the time of day
TIMES = 5


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help=f"launches that count ({TIMES})")
    given = parser.parse_args()
    try:
        if given.times < 1:
            raise UsageError(f"--times is {given.times}; it must be at least 1")
        launches = asyncio.run(cancelled_by_signals(measure(given.times)))
    except NetgainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("error: interrupted; the server is stopped")
    figures: dict[str, _report.Figure] = {
        name: statistics.median(launch[name] for launch in launches) for name in launches[0]
    }
    figures |= {
        "cold_start_low_s": min(launch["cold_start_s"] for launch in launches),
        "cold_start_high_s": max(launch["cold_start_s"] for launch in launches),
    }
    context = {"launches": len(launches), "load_average_after": psutil.getloadavg()}
    _report.write(given.json, figures, context, "From the launch of netgain serve to its first token")


async def measure(times: int) -> list[dict[str, float]]:
    """The figures of each launch. Raises Unavailable when one does not answer."""
    launches = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(times + 1):
            launches.append(await launch(Path(folder) / f"{number}.log"))
            print(f"launch {number}/{times}: {launches[-1]['cold_start_s']:.2f} s", file=sys.stderr)
    return launches[1:]


async def launch(log: Path) -> dict[str, float]:
    server = launched_netgain("start", ("default", "--set", f"engine.model.name={MODEL}"), log)
    began_s, began_at = time.monotonic(), time.time()
    try:
        await server.start()
        await server.ready(START_S)
        ready_s = time.monotonic() - began_s
        options = Options(server_record=False)
        done = await run(server.url, MODEL, items(1, PROMPT_TOKENS, 1, "first"), Closed(1), options)
        token_s = time.monotonic() - began_s
        (record,) = done.records
        if record.error is not None or record.output_tokens != 1:
            raise Unavailable(f"the first request brought {record.output_tokens} tokens: {record.error}")
        return parts(log.read_text(errors="replace"), began_at, ready_s, token_s)
    finally:
        await server.stop()


def parts(log: str, began_at: float, ready_s: float, token_s: float) -> dict[str, float]:
    """What the launch is made of. The system knows the start of a process to its clock tick, mostly 10 ms."""
    (keeper,) = psutil.Process().children()
    (api,) = keeper.children()
    (engine,) = api.children()
    launched_s = engine.create_time() - api.create_time()
    engine_s = logged_s(log, began_at)
    return {
        "cold_start_s": token_s,
        "engine_launched_after_s": launched_s,
        "engine_loads_s": engine_s - launched_s,
        "server_opens_s": ready_s - engine_s,
        "first_answer_s": token_s - ready_s,
        "cpu_api_s": cpu_s(api),
        "cpu_engine_s": cpu_s(engine),
    }


def logged_s(text: str, began_at: float) -> float:
    """Seconds from `began_at` (of the wall clock) to the log's line that says that the engine is ready."""
    line = next((line for line in text.splitlines() if ENGINE_READY in line), None)
    if line is None:
        raise Unavailable(f"the server's log does not say when its engine was ready: {text[-500:]}")
    stamp, _, milliseconds = line[:23].partition(",")
    return time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M:%S")) + int(milliseconds) / 1e3 - began_at


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
