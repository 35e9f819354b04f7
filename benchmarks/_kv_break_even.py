"""From which length on loading beats computing, by tier and bandwidth: links as they were learnt and as they are shaped, put into
the policy's own formula with the measured cost of steps."""

import msgspec
from rich.table import Table

from benchmarks import _kv_process, _kv_warm, _report
from benchmarks._pieces import Found, Kept, Piece, Value
from netgain.cost.link import LinkFit
from netgain.cost.load_break_even import BreakEven, break_even
from netgain.cost.step_cost import StepCost

SHAPED = ("20MB", "50MB", "100MB", "200MB", "500MB", "1000MB")
SHAPED_LATENCY_S = 200e-6
LONGEST = 2048
PIECE = "step-cost"


class Row(msgspec.Struct, frozen=True):
    """One link. `measured`: by loads of prefixes of several lengths, where there were any."""

    link: str
    latency_s: float
    bytes_per_s: float
    predicted: BreakEven
    measured: float | None = None


def nothing_known() -> dict[str, _report.Figure]:
    return {f"break_even_predicted_{name}": None for name in (*SHAPED, *_kv_warm.TIERS)}


def pieces() -> list[Piece]:
    return [Piece(PIECE, 20.0, _measure)]


def rows(kept: Kept, repeats: int) -> list[Row]:
    """Shaped links once the cost of steps is known, tiers once they were loaded from."""
    if PIECE not in kept:
        return []
    told = kept.of(PIECE)[""]
    cost = msgspec.convert(told["cost"], StepCost)
    runs = _kv_warm.runs_of(kept, repeats)
    links = {name: LinkFit(SHAPED_LATENCY_S, float(name.removesuffix("MB")) * 1e6, 0.0, 1) for name in SHAPED}
    found = []
    for name, link in (links | _kv_warm.links(runs)).items():
        run = runs.get(name)
        assert link.bytes_per_s is not None
        even = break_even(link, cost, told["token_bytes"], LONGEST, chunk_tokens=told["chunk_tokens"])
        measured = None if run is None or isinstance(run, str) else _kv_warm.break_even(run)
        found.append(Row(name, link.latency_s, link.bytes_per_s, even, measured))
    return found


def found(kept: Kept, repeats: int) -> Found:
    """`break_even_predicted_LINK`: tokens, "always" (from the first block on), or "never" (up to LONGEST)."""
    table = rows(kept, repeats)
    figures: dict[str, _report.Figure] = {
        f"break_even_predicted_{row.link}": row.predicted.word
        if row.predicted.word in ("always", "never")
        else row.predicted.tokens
        for row in table
    }
    context: dict[str, object] = {
        "break_even_links": {row.link: {"latency_s": row.latency_s, "bytes_per_s": row.bytes_per_s} for row in table}
    }
    runs = _kv_warm.runs_of(kept, repeats)
    missing = {f"break_even_predicted_{tier}": run for tier, run in runs.items() if isinstance(run, str)}
    return Found(figures, context if table else {}, missing)


def shown(table: list[Row]) -> Table:
    drawn = Table(title="Prefix length in tokens from which on loading beats computing", title_justify="left")
    for name in ("link", "latency", "bandwidth", "predicted", "measured"):
        drawn.add_column(name, justify="left" if name == "link" else "right")
    for row in table:
        name = row.link if row.link in _kv_warm.TIERS else f"shaped to {row.link}/s"
        word = row.predicted.word
        measured = (
            "" if row.link not in _kv_warm.TIERS else "never" if row.measured is None else _measured(row.measured)
        )
        drawn.add_row(
            name,
            f"{row.latency_s * 1e3:.2f} ms",
            f"{row.bytes_per_s / 1e6:,.0f} MB/s",
            f"never (to {row.predicted.longest})" if word == "never" else word,
            measured,
        )
    return drawn


def _measured(tokens: float) -> str:
    return "always" if tokens <= _kv_warm.LENGTHS[0] else f"{tokens:.0f}"


def _measure() -> Value:
    cost = _kv_process.step_cost()
    return dict(msgspec.to_builtins(cost, str_keys=True))
