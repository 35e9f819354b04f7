"""From figures by server to netgain-over-peer ratios: like with like, and best with best."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks import _report
from benchmarks.peers.programs import Contender

LOWER_IS_BETTER = ("decode_c1",)
OWN = ("start", "rss")  # what every server is shown with, but speed ratios are not made of

Results = Mapping[str, Mapping[str, Sequence[float]]]
"""measure -> label -> one figure per round."""


def figures(field: Sequence[Contender], results: Results) -> dict[str, _report.Figure]:
    """Every server's own medians, then the ratios, above 1 where netgain is faster, and netgain's start and memory."""
    out: dict[str, _report.Figure] = {}
    for measure, by_label in results.items():
        for label, values in by_label.items():
            out[f"{measure}_{label}"] = statistics.median(values)
    ours = [one for one in field if one.engine == "netgain"]
    peers = [one for one in field if one.engine != "netgain"]
    for measure, by_label in results.items():
        if measure in OWN:
            continue
        for precision in dict.fromkeys(one.precision for one in ours):
            mine = _best(measure, by_label, [one for one in ours if one.precision == precision])
            like = [one for one in peers if one.precision == precision]
            for engine in dict.fromkeys(one.engine for one in like):
                theirs = _best(measure, by_label, [one for one in like if one.engine == engine])
                out |= _ratio(f"{measure}_{precision}_vs_{engine}", measure, by_label[mine], by_label[theirs])
        if ours and peers:
            best_mine, best_peer = (_best(measure, by_label, group) for group in (ours, peers))
            best = "best_vs_best_peer" if measure == "decode_c1" else "vs_best_peer"
            out |= {f"{measure}_best_netgain": best_mine, f"{measure}_best_peer": best_peer}
            out |= _ratio(f"{measure}_{best}", measure, by_label[best_mine], by_label[best_peer])
    return out | _start_and_memory(ours, peers, results)


def _start_and_memory(
    ours: Sequence[Contender], peers: Sequence[Contender], results: Results
) -> dict[str, _report.Figure]:
    """`rss_vs_vllm_cpu` is a share of vLLM's memory, both in bf16: lower is better."""
    out: dict[str, _report.Figure] = {}
    if ours and "start" in results:
        out["cold_start_s"] = statistics.median(value for one in ours for value in results["start"][one.label])
    mine = next((one for one in ours if one.precision == "bf16"), None)
    vllm = next((one for one in peers if one.engine == "vllm_cpu"), None)
    if mine and vllm and "rss" in results:
        rss = results["rss"]
        out["rss_vs_vllm_cpu"] = statistics.median(rss[mine.label]) / statistics.median(rss[vllm.label])
    return out


def _best(measure: str, by_label: Mapping[str, Sequence[float]], group: Sequence[Contender]) -> str:
    pick = min if measure in LOWER_IS_BETTER else max
    return pick((one.label for one in group), key=lambda label: statistics.median(by_label[label]))


def _ratio(name: str, measure: str, mine: Sequence[float], theirs: Sequence[float]) -> dict[str, _report.Figure]:
    pairs = zip(mine, theirs, strict=True)
    ratios = [t / m if measure in LOWER_IS_BETTER else m / t for m, t in pairs]
    return {name: statistics.median(ratios), f"{name}_low": min(ratios), f"{name}_high": max(ratios)}
