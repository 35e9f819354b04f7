"""netgain beside vLLM's CPU build, llama.cpp and OpenVINO GenAI: same machine, model, prompts and client, in one run.

python -m benchmarks.peers [--install] [--tune] [--json FILE] [--rounds N] [--only NAME...] [--measures NAME...].
Every server is started once and keeps running; one at a time is loaded, in an order that turns round every round, and those
that burn a core while idle are frozen meanwhile. Figures are medians over rounds; `A_vs_B` is the median over rounds of the
ratio within one round, above 1 where netgain is faster, `_low` and `_high` the lowest and highest round. Like is compared with
like (bf16 with bf16, and so on), and best with best: the best form of netgain against the best form of any peer.
`decode_c1`: ms per output token of one stream, 128 in, 128 out. `prefill_N`: tokens/s until the first token of an N-token prompt.
`output_cN`: output tokens/s with N streams at once, 256 in, 128 out, prefill included. `start`: s from the start of the process
to the first token (`cold_start_s`: netgain's, files in the page cache). `rss`: resident GiB after all that, every server with
room for the same number of KV tokens (1 GiB in 16 bit); `rss_vs_vllm_cpu` is netgain's share of vLLM's in bf16.
`decode_bandwidth_share`: bytes of weights and KV that netgain's bf16 decode reads per second, of what the machine's memory was
probed to give just before. `step_overhead_ms_b16` is that of `python -m benchmarks.step`, run just before. `--tune` first tries
llama.cpp's `-ub` on every file of weights and keeps the best of them for this and later runs; untuned it is llama.cpp's default.
`_context` says so, and which kernels netgain computed with: without a compiler its figures are those of the reference.
"""

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import msgspec
import psutil

from benchmarks import _report
from benchmarks._signals import cancelled_by_signals
from benchmarks.peers import install, machine, ratios, tuning
from benchmarks.peers.programs import KV_TOKENS, LLAMA_FORMS, MODEL, OPENVINO_KV, Contender, contenders, llama
from benchmarks.peers.prompts import items
from netgain.cost import roofline
from netgain.deciding.experiment.arms.launched import LaunchedServer
from netgain.errors import NetgainError, Unavailable, UsageError
from netgain.measuring.client.options import Options
from netgain.measuring.client.run import Run, run
from netgain.measuring.workload.arrivals import Closed

START_S = 900.0  # vLLM compiles while starting
REQUEST_S = 600.0
WARM_UP = (64, 8)  # tokens in and out of each server's first request


class Measure(msgspec.Struct, frozen=True):
    """One way to load a server. `requests` prompts by `concurrency` streams; `decode` reads the time per output token,
    else tokens per second: of the prompt where one token is asked for, else of the output."""

    name: str
    prompt_tokens: int
    output_tokens: int
    concurrency: int = 1
    requests: int = 1

    @property
    def long(self) -> bool:
        return self.output_tokens == 1

    def read(self, done: Run) -> float:
        """The figure, higher or lower is better by kind. Raises Unavailable for an answer that is not what was asked."""
        for record in done.records:
            counts = (record.prompt_tokens, record.output_tokens)
            if record.error is not None or counts != (self.prompt_tokens, self.output_tokens):
                raise Unavailable(
                    f"{self.name}: {counts} tokens, wanted {self.prompt_tokens, self.output_tokens}; {record.error}"
                )
        if self.long:
            times = [record.ttft_s for record in done.records if record.ttft_s is not None]
            return self.prompt_tokens / statistics.median(times)
        if self.concurrency == 1 and self.name == "decode_c1":
            return statistics.median(record.tpot_s for record in done.records if record.tpot_s is not None) * 1e3
        return self.output_tokens * len(done.records) / done.window_s


MEASURES = (
    Measure("decode_c1", 128, 128, requests=2),
    Measure("prefill_512", 512, 1, requests=2),
    Measure("prefill_2048", 2048, 1),
    Measure("prefill_7000", 7000, 1),
    *(Measure(f"output_c{c}", 256, 128, c, requests=max(c, 2)) for c in (1, 2, 4, 8, 16, 32)),
)


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--install", action="store_true", help="install the peers first (several GB, up to an hour)")
    parser.add_argument("--tune", action="store_true", help="try llama.cpp's -ub first and keep the best (minutes)")
    parser.add_argument("--rounds", type=int, default=3, help="times that everything is measured")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="engines or labels, e.g. netgain llama_cpp")
    parser.add_argument("--measures", nargs="+", choices=[measure.name for measure in MEASURES], metavar="NAME")
    given = parser.parse_args()
    try:
        if given.rounds < 1:
            raise UsageError(f"--rounds is {given.rounds}; it must be at least 1")
        if given.install:
            install.everything()
        if given.tune:
            asyncio.run(cancelled_by_signals(tune()))
        measures = [measure for measure in MEASURES if not given.measures or measure.name in given.measures]
        work = compare(set(given.only) if given.only else None, measures, given.rounds, given.json)
        figures, context = asyncio.run(cancelled_by_signals(work))
    except NetgainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("error: interrupted; the servers are stopped; with --json, what was measured by every server is kept")
    _report.write(given.json, figures, context, "netgain beside its peers")


async def compare(
    names: set[str] | None, measures: list[Measure], rounds: int, path: Path | None
) -> tuple[dict[str, _report.Figure], dict[str, object]]:
    """Start, load in turns, and stop; what every server has measured is kept in `path`. Raises UsageError and Unavailable."""
    bytes_per_s = machine.read_bytes_per_s()
    limits = {**machine.step_overhead(), "read_bytes_per_s": bytes_per_s}
    results: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))  # measure -> label -> by round
    async with contextlib.AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        field = contenders(names, logs)
        if not any(one.engine != "netgain" for one in field):
            print("no peer is installed: run again with --install", file=sys.stderr)
        for one in field:
            if one.engine == "netgain":
                # its start is quoted with the files in the page cache: this one, not counted, puts them there
                async with contextlib.AsyncExitStack() as uncounted:
                    await start(uncounted, one.server)
            results["start"][one.label].append(await start(stack, one.server))
            if one.long is not None and any(measure.long for measure in measures):
                await start(stack, one.long)
            if one.spins:
                one.server.pause()
        for number in range(rounds):
            for measure in measures:
                by_label: dict[str, float] = {}
                for one in field if number % 2 == 0 else field[::-1]:
                    by_label[one.label] = figure = await load(one, measure, number)
                    print(f"round {number + 1}/{rounds} {measure.name} {one.label}: {figure:.5g}", file=sys.stderr)
                for label, figure in by_label.items():
                    results[measure.name][label].append(figure)
                _report.save(path, ratios.figures(field, results) | limits, {"complete": False, "rounds": rounds})
        for one in field:
            seen = one.server.observe()
            results["rss"][one.label].append(seen.resident_bytes / 2**30 if seen else float("nan"))
        limits["decode_bandwidth_share"] = bandwidth_share(field, results, bytes_per_s)
        context = {
            "rounds": rounds,
            "kv_tokens": KV_TOKENS,
            "commands": {label: shown(server) for one in field for label, server in processes(one).items()},
            "kernels": {one.label: machine.kernels(one.server.url) for one in field if one.engine == "netgain"},
            "openvino_kv": OPENVINO_KV,
            "llama_ubatch": {
                kind: msgspec.to_builtins(tuning.tuned(kind, install.llama_folder())) for kind, _ in LLAMA_FORMS
            },
            "load_average_after": psutil.getloadavg(),
        }
    return ratios.figures(field, results) | limits, context


def processes(one: Contender) -> dict[str, LaunchedServer]:
    """Every process of it by its name."""
    return {server.name: server for server in (one.server, one.long) if server is not None}


def shown(server: LaunchedServer) -> str:
    return " ".join(server.command).replace(str(Path.home()), "~")


async def tune() -> None:
    """Tries every ubatch on every file of weights, in turns, and keeps the best. Raises UsageError and Unavailable."""
    kinds = [form for form in LLAMA_FORMS if install.llama_file(form[0]).is_file()]
    if not kinds:
        raise UsageError("--tune tries llama.cpp, which is not installed: run with --install")
    lengths = [measure for measure in MEASURES if measure.name in ("prefill_512", "prefill_2048")]
    for kind, precision in kinds:
        rates: dict[int, list[list[float]]] = {ubatch: [[] for _ in lengths] for ubatch in tuning.UBATCHES}
        async with contextlib.AsyncExitStack() as stack:
            logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers: dict[int, LaunchedServer] = {}
            for ubatch in tuning.UBATCHES:
                found = llama(kind, precision, logs / str(ubatch), ubatch).long
                assert found is not None
                servers[ubatch] = found
                (logs / str(ubatch)).mkdir()
                await start(stack, found)
            for number in range(tuning.ROUNDS):
                for ubatch in tuning.UBATCHES if number % 2 == 0 else tuning.UBATCHES[::-1]:
                    for place, measure in enumerate(lengths):
                        done = await ask(servers[ubatch], measure, f"tune-{number}")
                        rates[ubatch][place].append(measure.read(done))
        best = tuning.keep(kind, rates, install.llama_folder())
        print(f"llama.cpp {kind}: -ub {best} reads prompts fastest", file=sys.stderr)


def bandwidth_share(field: list[Contender], results: ratios.Results, bytes_per_s: float | None) -> float | None:
    """Of netgain in bf16; None if it did not decode alone or the machine could not be probed."""
    mine = next((one for one in field if (one.engine, one.precision) == ("netgain", "bf16")), None)
    if mine is None or "decode_c1" not in results:
        return None
    decode = next(measure for measure in MEASURES if measure.name == "decode_c1")
    read = machine.decode_bytes(mine.server.url, decode.prompt_tokens + decode.output_tokens / 2)
    return roofline.bandwidth_share(read, statistics.median(results["decode_c1"][mine.label]) / 1e3, bytes_per_s)


async def start(stack: contextlib.AsyncExitStack, server: LaunchedServer) -> float:
    """Seconds from the start of the process to its first token; leaving `stack` stops it, also when this fails."""
    stack.push_async_callback(server.stop)
    begin_s = time.monotonic()
    await server.start()
    await server.ready(START_S)
    await ask(server, Measure("start", 16, 1))
    taken_s = time.monotonic() - begin_s
    print(f"started {server.name}: {taken_s:.1f} s", file=sys.stderr)
    await ask(server, Measure("warm-up", *WARM_UP))
    return taken_s


async def load(one: Contender, measure: Measure, number: int) -> float:
    server = one.long if one.long is not None and measure.long else one.server
    if one.spins:
        server.resume()
    try:
        return measure.read(await ask(server, measure, f"{measure.name}-{number}"))
    finally:
        if one.spins:
            server.pause()


async def ask(server: LaunchedServer, measure: Measure, seed: str = "first") -> Run:
    prompts = items(measure.requests, measure.prompt_tokens, measure.output_tokens, seed)
    options = Options(server_record=False, timeout_s=REQUEST_S)
    return await run(server.url, MODEL, prompts, Closed(measure.concurrency), options)


if __name__ == "__main__":
    main()
