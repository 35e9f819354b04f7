"""Can the timing client keep up? Many streams at a steady pace from a scripted server, and how late its stamps are.

python -m benchmarks.client [--json FILE] [--streams N] [--rate TOKENS_PER_S] [--seconds S]. The server writes into each chunk the
time at which it was written (both processes read one monotonic clock), so a stamp's lateness is known for every token.
`streams_in_flight`: mean streams open at once in the middle of the run. `lateness_p99_ms`: the worse of the p99 of sending after
the schedule and the p99 of a stamp after the writing of its chunk. `client_cpu_share`: CPU seconds of the client per second.
"""

import asyncio
import math
import resource
import sys
from asyncio.subprocess import PIPE

from benchmarks import _report
from netgain.measuring.client.interrupt import run_interruptible
from netgain.measuring.client.options import Budget, Options
from netgain.measuring.client.quantile import quantile
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.client.run import Run, run
from netgain.measuring.workload.arrivals import Constant
from netgain.measuring.workload.item import Item, Message

RAMP_S = 2.0  # in which all streams are opened


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens per second of each stream")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each stream lasts")
    asked = parser.parse_args()
    result = run_interruptible(measure(asked.streams, asked.rate, asked.seconds))
    figures = figures_of(result, asked.streams)
    context = {"streams": asked.streams, "tokens_per_s_per_stream": asked.rate, "seconds": asked.seconds}
    _report.write(asked.json, figures, context, "The timing client under many streams")


async def measure(streams: int, rate: float, seconds: float) -> Run:
    """Open `streams` streams within RAMP_S and read each to its end."""
    _allow_files(2 * streams)
    tokens = round(rate * seconds)
    command = (sys.executable, "-m", "benchmarks._stream_server", str(tokens), str(1.0 / rate))
    server = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        port = int(await server.stdout.readline())
        items = [
            Item(id=f"s{place}", category="stream", max_tokens=tokens, messages=(Message("user", "Count."),))
            for place in range(streams)
        ]
        options = Options(
            timeout_s=4 * seconds + 30,
            server_record=False,
            budget=Budget(cpu_share=2.0, lateness_p99_s=1.0, loop_lag_p99_s=1.0),
        )
        return await run(f"http://127.0.0.1:{port}", "scripted", items, Constant(streams / RAMP_S), options)
    finally:
        server.stdin.close()
        await server.wait()


def figures_of(result: Run, streams: int) -> dict[str, _report.Figure]:
    """Lateness over all tokens; percentiles in ms."""
    late = sorted(seconds for record in result.records for seconds in stamps_late_s(record))
    sent = [record.lateness_s for record in result.records]
    worst = [quantile(late, 0.99), quantile(sent, 0.99)]
    good = [record for record in result.records if record.ok]
    opened, closed = result.started_s + RAMP_S, min((record.finished_s for record in good), default=math.nan)
    lasted = math.fsum(min(record.finished_s, closed) - max(record.sent_s, opened) for record in good)
    chunks = sum(len(record.chunk_times_s) for record in good)
    return {
        "streams_in_flight": lasted / (closed - opened) if closed > opened else None,
        "lateness_p99_ms": None if None in worst else 1e3 * max(value for value in worst if value is not None),
        "client_cpu_share": result.client.cpu_share,
        "stamp_lateness_p50_ms": _ms(quantile(late, 0.5)),
        "stamp_lateness_p99_ms": _ms(worst[0]),
        "stamp_lateness_most_ms": _ms(late[-1] if late else None),
        "send_lateness_p99_ms": _ms(worst[1]),
        "loop_lag_p99_ms": _ms(result.client.loop_lag_p99_s),
        "tokens_per_s": chunks / result.window_s,
        "client_cpu_us_per_token": 1e6 * result.client.cpu_s / chunks if chunks else None,
        "failed": streams - len(good),
    }


def stamps_late_s(record: ClientRecord) -> list[float]:
    """Per chunk: the client's stamp minus the time written in its text."""
    return [stamp_s - float(said) for stamp_s, said in zip(record.chunk_times_s, record.text.split(), strict=False)]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


if __name__ == "__main__":
    main()
