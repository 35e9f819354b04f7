"""What KV beyond the device is worth on this machine, and whether the decision between loading and computing is right.

python -m benchmarks.kv_tiers [--json FILE] [--repeats N] [--only warm,policy,overlap,workloads,trace,codecs] [--trace FILE]
[--again]. On the default model, in pieces: each is kept in FILE.pieces as soon as it is measured, and FILE is written anew, so
that the same command goes on after an interruption, and a run of other parts adds to what there is (--again: from the start).

warm: a process stores prefixes (dram: in shared memory) and is killed with -9; another one loads them, always, the device's cache
emptied and the files dropped from the page cache before each request. `warm_TIER_2048_speedup` is the cold time to first
token over the warm one, `warm_TIER_2048_over_ideal` the warm one over (prefill of the suffix + bytes / bandwidth of the tier,
each measured apart); `break_even_tokens_TIER`: from which length of prefix on loading was sooner than computing, by
interpolation over measured lengths (16: always; null: never). `break_even_predicted_LINK`: the same by the policy's own formula,
from the measured cost of steps and the link as learnt, also for shaped links.

policy: over links shaped from 20 MB/s to 10 GB/s, requests that always load, never load and go by measurement, by turns.
`policy_regret` is the largest over links of measured / better of the other two - 1, by medians, where which is better is decided
by the other half of the turns (the smaller of two noisy medians is too small); each link has its interval.
`policy_median_error` is the median of |time from admission to first token / prediction - 1| of all measured decisions.

overlap: `overlap_speedup_LINK`, time to first token of a prefix of 1,024 tokens behind a shaped link and a suffix of 256 when all
of the prefix is waited for, over that when its end comes by layers while the suffix is computed, by turns.

workloads: `worst_ttft_ratio_with_policy`, the largest over bundled workloads, and one without a hit, and tiers of mean time to
first token with the tier over without, in interleaved blocks of several rounds; each cell has its interval. Exit code 1 where the
whole interval of a cell lies beyond 3 %. trace: Mooncake's conversations at block level: `mooncake_ideal_hit_rate`,
`mooncake_replay_s`. codecs: `codec_NAME_ratio`, `_encode_gbps`, `_decode_gbps` and `_kl`, as by benchmarks.codecs, which takes
what was measured here before.

`wrong_tokens`: answers of all parts that differ from those without tiers. What is not known is null, and said why.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import _kv_break_even, _kv_overlap, _kv_policy, _kv_warm, _kv_workloads, _report, codecs
from benchmarks._pieces import Found, Kept, Piece, Value, merged, run
from benchmarks.eviction import hit_rate, read
from netgain.serving.tiers.codecs.names import NAMES
from netgain.serving.tiers.eviction import LRU

PARTS = ("warm", "policy", "overlap", "workloads", "trace", "codecs")
CODECS = tuple(codecs.key(name, figure) for name in NAMES for figure in ("ratio", "encode_gbps", "decode_gbps", "kl"))
TRACES = [base / "shared/data/traces" for base in Path(__file__).resolve().parents[1:3]]
TRACE_FIGURES = ("mooncake_ideal_hit_rate", "mooncake_replay_s")


def main() -> int:
    parser = _report.arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--trace", type=Path, help="Mooncake's conversation trace (found in shared/data)")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    if options.repeats < 1:
        parser.error(f"{options.repeats} repeats measure nothing; give at least 1")
    if options.trace is not None and not options.trace.is_file():
        parser.error(f"there is no trace {options.trace}")
    repeats = options.repeats
    kept = Kept(options.json, _report.commit(), options.again)
    context = {"repeats": repeats}
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # servers and folders are given up on the way
    with contextlib.ExitStack() as stack:
        pieces = {
            "warm": [*_kv_break_even.pieces(), *_kv_warm.pieces(repeats)],
            "policy": _kv_policy.pieces(repeats),
            "overlap": _kv_overlap.pieces(repeats),
            "workloads": _kv_workloads.Workloads(stack).pieces(),
            "trace": [Piece("trace", 3.0, partial(_trace, options.trace))],
            "codecs": [Piece("codecs", 300.0, _codecs)],
        }

        def saved() -> None:
            told = all_found(kept, repeats)
            _report.save(options.json, told.figures, {**told.context, **context, "unknown": told.missing})

        run([piece for part in PARTS if part in parts for piece in pieces[part]], kept, saved)
    told = all_found(kept, repeats)
    _report.write(
        options.json, told.figures, {**told.context, **context, "unknown": told.missing}, "KV beyond the device"
    )
    return show(told, _kv_break_even.rows(kept, repeats))


def nothing_known() -> dict[str, _report.Figure]:
    """Every figure that there is, unknown."""
    return {
        **_kv_warm.nothing_known(),
        **_kv_break_even.nothing_known(),
        **_kv_policy.nothing_known(),
        **_kv_overlap.nothing_known(),
        **_kv_workloads.nothing_known(),
        "wrong_tokens": None,
        **dict.fromkeys(TRACE_FIGURES),
        **dict.fromkeys(CODECS),
    }


def all_found(kept: Kept, repeats: int) -> Found:
    """What all pieces that there are say."""
    trace, coded = kept.of("trace").get("", {}), kept.of("codecs").get("", {})
    told = merged(
        (
            _kv_warm.found(kept, repeats),
            _kv_break_even.found(kept, repeats),
            _kv_policy.found(kept, repeats),
            _kv_overlap.found(kept, repeats),
            _kv_workloads.found(kept),
            Found(
                trace.get("figures", {}),
                {},
                dict.fromkeys(TRACE_FIGURES, str(trace["missing"])) if "missing" in trace else {},
            ),
            Found(of_codecs(coded), {}, {}),
        ),
        nothing_known(),
    )
    if told.wrong is None:
        return told
    missing = {name: said for name, said in told.missing.items() if name != "wrong_tokens"}
    return told._replace(figures={**told.figures, "wrong_tokens": told.wrong}, missing=missing)


def of_codecs(measured: Mapping[str, _report.Figure]) -> dict[str, _report.Figure]:
    """Of all that is measured of codecs, what belongs here."""
    return {name: measured[name] for name in CODECS if name in measured}


def show(told: Found, break_even: list[_kv_break_even.Row]) -> int:
    """Tables, and why figures are unknown; the exit code."""
    console = Console(width=120 if not sys.stdout.isatty() else None)
    if break_even:
        console.print(_kv_break_even.shown(break_even))
    cells = told.context.get("ttft_ratios_with_policy")
    if isinstance(cells, dict):
        console.print(_cells(cells))
    reasons: dict[str, list[str]] = {}
    for name, said in told.missing.items():
        reasons.setdefault(said, []).append(name)
    for said, names in reasons.items():
        console.print(f"unknown: {', '.join(names)}: {said}", highlight=False, markup=False, soft_wrap=True)
    if told.wrong:
        console.print(f"FAILED: {told.wrong} answers differ from those without tiers", highlight=False, soft_wrap=True)
    worse = told.context.get("worse_than_3_percent")
    if worse and isinstance(worse, list):
        console.print(
            f"FAILED: the first token comes later than 3 % with tiers, by the whole interval: {', '.join(worse)}",
            highlight=False,
            soft_wrap=True,
        )
    return 1 if told.wrong or worse else 0


def _cells(cells: Mapping[str, Mapping[str, float | None]]) -> Table:
    drawn = Table(title="Mean time to first token with a tier over without", title_justify="left")
    for name in ("workload/tier", "ratio", "95 % interval", "blocks", "tokens loaded"):
        drawn.add_column(name, justify="left" if name == "workload/tier" else "right")
    for name, cell in cells.items():
        known = cell["low"] is not None and cell["high"] is not None
        interval = f"{cell['low']:.3f} to {cell['high']:.3f}" if known else "unknown"
        drawn.add_row(name, f"{cell['ratio']:.3f}", interval, f"{cell['blocks']}", f"{cell['loaded']:.0%}")
    return drawn


def _trace(trace: Path | None) -> Value:
    found = (
        [trace] if trace else [path for folder in TRACES for path in sorted(folder.glob("mooncake_conversation.jsonl"))]
    )
    if not found:
        return {"missing": "no trace: give Mooncake's conversation trace (--trace)"}
    began_s = time.perf_counter()
    prompts = read(found[0])
    different = len({block for prompt in prompts for block in prompt})
    rate = hit_rate(prompts, LRU(different))
    return {"figures": {"mooncake_ideal_hit_rate": rate, "mooncake_replay_s": time.perf_counter() - began_s}}


def _codecs() -> Value:
    return dict(codecs.measure(lambda what, done: print(f"         {what}, {done:.0%}", file=sys.stderr, flush=True)))


if __name__ == "__main__":
    sys.exit(main())
