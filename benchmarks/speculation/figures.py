"""From rounds to figures: speedup, tokens per iteration, what an iteration costs more, and whether the control ever costs."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks import _report
from benchmarks.speculation.arms import GOODPUT, NONE, Ran
from benchmarks.speculation.cells import CONCURRENCIES, ENOUGH, LOADS, Cell, Round
from benchmarks.speculation.prompts import COPY
from netgain.ledger.records import DraftCounts

RESAMPLES = 2000
COSTS_AT_MOST = 0.03
Figures = dict[str, _report.Figure]


def figures(
    rounds: Sequence[Round], categories: Sequence[str], workloads: Sequence[str], names: Sequence[str]
) -> Figures:
    """All keys are there; those of cells that did not run are None. Intervals are of 95 %, over the choice of rounds, and None
    for fewer than ENOUGH of these."""
    by_cell: dict[Cell, list[Round]] = defaultdict(list)
    for one in rounds:
        by_cell[one.cell].append(one)
    out: Figures = {}
    for category in categories:
        for load in CONCURRENCIES:
            measured = by_cell[Cell("speedup", category, load)]
            for name in names:
                out |= _speedup(measured, name, f"{category}_{name}_c{load}")
            out |= _plain(measured, f"{category}_c{load}")
        for name in names:
            out[f"pays_up_to_c_{category}_{name}"] = _pays_up_to(out, category, name)
    out |= _best_alone(out, COPY, names)
    lows = {name: _best_alone(out, name, names)[f"speedup_{name}_c1_low"] for name in categories if name != COPY}
    known = {name: low for name, low in lows.items() if isinstance(low, float)}
    out["categories_above_1_c1"] = sum(low > 1.0 for low in known.values()) if known else None
    out |= _control(by_cell, workloads, names)
    out["token_mismatches"] = sum(sum(one.mismatches.values()) for one in rounds) if rounds else None
    out["requests_compared"] = sum(len(one.ran[name].answers) for one in rounds for name in one.mismatches)
    return out


def _best_alone(out: Mapping[str, _report.Figure], category: str, names: Sequence[str]) -> Figures:
    """Of the proposer that is fastest with one request at a time."""
    keys = [f"speedup_{category}_{name}_c1" for name in names]
    found = max((key for key in keys if out.get(key) is not None), key=lambda key: float(out[key] or 0.0), default="")
    return {f"speedup_{category}_c1{end}": out.get(f"{found}{end}") for end in ("", "_low", "_high")}


def drafted_alone(rounds: Sequence[Round], name: str) -> DraftCounts:
    """What `name` drafted over all categories but copying, one request at a time."""
    counts = DraftCounts()
    for one in rounds:
        if one.cell.kind == "speedup" and one.cell.concurrency == 1 and one.cell.category != COPY and name in one.ran:
            counts.merge(one.ran[name].drafts)
    return counts


def _speedup(measured: Sequence[Round], name: str, suffix: str) -> Figures:
    """Speedup is total time over total time, prompts included; `decode_speedup` is of the time behind first tokens alone.
    `overhead` is how much longer an iteration takes than one of no speculation: what tokens per iteration have to earn back."""
    pairs = [(one.ran[NONE], one.ran[name]) for one in measured if name in one.ran]
    kinds = ("decode_speedup", "tokens_per_iteration", "overhead")
    out: Figures = dict.fromkeys([f"speedup_{suffix}{end}" for end in ("", "_low", "_high")])
    out |= dict.fromkeys(f"{kind}_{suffix}" for kind in kinds)
    if not pairs:
        return out
    seconds = np.array([(plain.seconds, with_drafts.seconds) for plain, with_drafts in pairs])
    low, high = _interval(seconds, lambda drawn: drawn[..., 0].sum(-1) / drawn[..., 1].sum(-1))
    decode_s = [sum(pair[side].decode_s for pair in pairs) for side in (0, 1)]
    iterations = sum(with_drafts.iterations for _, with_drafts in pairs)
    later = sum(with_drafts.later_tokens for _, with_drafts in pairs)
    faster = decode_s[0] / decode_s[1] if decode_s[1] > 0.0 else None
    per_iteration = later / iterations if iterations else None
    known = faster is not None and per_iteration is not None
    return {
        f"speedup_{suffix}": float(seconds[:, 0].sum() / seconds[:, 1].sum()),
        f"speedup_{suffix}_low": low,
        f"speedup_{suffix}_high": high,
        f"decode_speedup_{suffix}": faster,
        f"tokens_per_iteration_{suffix}": per_iteration,
        f"overhead_{suffix}": per_iteration / faster if known and faster and per_iteration else None,
    }


def _plain(measured: Sequence[Round], suffix: str) -> Figures:
    """No speculation: output tokens per second, prompts included, and ms per token behind the first."""
    ran: list[Ran] = [one.ran[NONE] for one in measured]
    later = sum(one.later_tokens for one in ran)
    return {
        f"none_tokens_per_s_{suffix}": sum(one.output_tokens for one in ran) / sum(one.seconds for one in ran)
        if ran
        else None,
        f"none_ms_per_token_{suffix}": sum(one.decode_s for one in ran) / later * 1e3 if later else None,
        f"rounds_{suffix}": len(ran),
    }


def _pays_up_to(out: Mapping[str, _report.Figure], category: str, name: str) -> int | None:
    """The highest measured concurrency up to which every measured one is faster than none; 0: not even the lowest."""
    best: int | None = None
    for load in CONCURRENCIES:
        speedup = out[f"speedup_{category}_{name}_c{load}"]
        if not isinstance(speedup, float):
            continue
        if speedup <= 1.0:
            return best or 0
        best = load
    return best


def _control(by_cell: Mapping[Cell, Sequence[Round]], workloads: Sequence[str], names: Sequence[str]) -> Figures:
    """Median over rounds of the time of none over that of the control: below 1 it costs. `control_losses` counts cells whose
    whole interval lies beyond COSTS_AT_MOST, `goodput_beyond` names those whose median does, lowest first."""
    out: Figures = {}
    beyond: list[tuple[float, str]] = []
    worst: tuple[float, str] | None = None
    losses = None
    for workload in workloads:
        for load in LOADS:
            measured = by_cell.get(Cell("control", workload, load), ())
            for name in names:
                suffix = f"{workload}_{name}_c{load}"
                seconds = np.array(
                    [(r.ran[NONE].seconds, r.ran[name + GOODPUT].seconds) for r in measured if name + GOODPUT in r.ran]
                )
                ratio = low = high = None
                if len(seconds):
                    ratio = float(np.median(seconds[:, 0] / seconds[:, 1]))
                    low, high = _interval(seconds, lambda drawn: np.median(drawn[..., 0] / drawn[..., 1], -1))
                    worst = min(worst, (ratio, suffix)) if worst else (ratio, suffix)
                if high is not None:
                    losses = (losses or 0) + (high < 1.0 - COSTS_AT_MOST)
                if ratio is not None and ratio < 1.0 - COSTS_AT_MOST:
                    interval = "no interval" if low is None else f"{low:.3f} to {high:.3f}"
                    beyond.append((ratio, f"{suffix} {ratio:.3f} ({interval})"))
                out |= {f"goodput_{suffix}": ratio, f"goodput_{suffix}_low": low, f"goodput_{suffix}_high": high}
    out["worst_goodput_ratio"] = worst[0] if worst else None
    out["worst_goodput_ratio_low"] = out[f"goodput_{worst[1]}_low"] if worst else None
    out["worst_goodput_ratio_high"] = out[f"goodput_{worst[1]}_high"] if worst else None
    out["worst_goodput_cell"] = worst[1] if worst else None
    out["control_losses"] = losses
    out["goodput_beyond"] = "; ".join(said for _, said in sorted(beyond)) if worst else None
    out["goodput_cells_beyond"] = len(beyond) if worst else None
    return out


def _interval(
    seconds: NDArray[np.float64], ratio: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> tuple[float | None, float | None]:
    """`seconds` [rounds, 2]; rounds are drawn as pairs, since what disturbed one arm of a round disturbed the other, too."""
    if len(seconds) < ENOUGH:
        return None, None
    chosen = np.random.default_rng(0).integers(0, len(seconds), (RESAMPLES, len(seconds)))
    low, high = np.quantile(ratio(seconds[chosen]), [0.025, 0.975])
    return float(low), float(high)
