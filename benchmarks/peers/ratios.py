"""From figures by server to netgain-over-peer ratios: like with like, and best with best."""

import statistics
from collections.abc import Mapping, Sequence

from benchmarks import _report
from benchmarks.peers.programs import Contender

LOWER_IS_BETTER = ("decode", "start", "rss")

Results = Mapping[str, Mapping[str, Sequence[float]]]
"""measure -> label -> one figure per round."""


def figures(field: Sequence[Contender], results: Results) -> dict[str, _report.Figure]:
    """Every server's own medians, then the ratios, above 1 where netgain is better."""
    out: dict[str, _report.Figure] = {}
    for measure, by_label in results.items():
        for label, values in by_label.items():
            out[f"{measure}_{label}"] = statistics.median(values)
    ours = [one for one in field if one.engine == "netgain"]
    peers = [one for one in field if one.engine != "netgain"]
    for measure, by_label in results.items():
        for mine in ours:
            for peer in peers:
                if peer.precision == mine.precision:
                    name = f"{measure}_{mine.precision}_vs_{peer.label}"
                    out |= _ratio(name, measure, by_label[mine.label], by_label[peer.label])
        if ours and peers:
            best_mine, best_peer = (_best(measure, by_label, group) for group in (ours, peers))
            out[f"{measure}_best_peer"] = best_peer
            out |= _ratio(f"{measure}_vs_best_peer", measure, by_label[best_mine], by_label[best_peer])
    return out


def _best(measure: str, by_label: Mapping[str, Sequence[float]], group: Sequence[Contender]) -> str:
    pick = min if measure in LOWER_IS_BETTER else max
    return pick((one.label for one in group), key=lambda label: statistics.median(by_label[label]))


def _ratio(name: str, measure: str, mine: Sequence[float], theirs: Sequence[float]) -> dict[str, _report.Figure]:
    pairs = zip(mine, theirs, strict=True)
    ratios = [t / m if measure in LOWER_IS_BETTER else m / t for m, t in pairs]
    return {name: statistics.median(ratios), f"{name}_low": min(ratios), f"{name}_high": max(ratios)}
