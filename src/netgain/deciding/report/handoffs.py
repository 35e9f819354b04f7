"""What handoffs cost both arms, in words: the same in HTML, in Markdown and in the terminal."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.report.figures import seconds, size
from netgain.deciding.verdict.document import HandoffCost

COLUMNS = (
    *("Handoff", "Arm", "Number", "Failed", "Bytes", "Bytes wasted", "Tokens used", "Tokens wasted"),
    *("Waited", "Busy", "Hidden"),
)
BASIS = (
    "Handoffs explain a difference and may not be added up to one: some ran hidden behind something else (hidden: the known part "
    "of busy), and some are shared by a batch"
)
_UNKNOWN, _NONE = "unknown", "none"

Costs = Sequence[HandoffCost] | None


def handoff_rows(costs: Costs, unknown: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Each kind that happened in an arm, of both arms."""
    kinds = sorted({one.kind for one in costs or ()})
    return [(kind.replace("_", " "), arm, *_cells(costs, unknown, kind, arm)) for kind in kinds for arm in _ARMS]


def handoff_notes(costs: Costs, unknown: Mapping[str, str]) -> Iterator[str]:
    """Of arms without figures: that there was no handoff, or why it is not known; and what the figures rest on."""
    for arm in _ARMS:
        if arm in unknown:
            yield f"Of the {arm} it is unknown what handoffs cost: {unknown[arm]}"
        elif costs is None:
            yield f"Of the {arm} it is unknown what handoffs cost: its server was not asked"
        elif not any(one.arm == arm for one in costs):
            yield f"There was no handoff in the {arm}"
    if costs:
        yield BASIS


def print_handoffs(costs: Costs, unknown: Mapping[str, str], console: Console) -> None:
    """A line for each kind in each arm where it happened, and what is to be said of arms without one."""
    for one in costs or ():
        number, *figures = _cells(costs, unknown, one.kind, one.arm)
        told = ", ".join(f"{name.lower()} {figure}" for name, figure in zip(COLUMNS[3:], figures, strict=True))
        line = f"{one.arm}: {number} handoffs of {one.kind.replace('_', ' ')} ({told})"
        console.print(escape(line), highlight=False, soft_wrap=True)
    for note in handoff_notes(costs, unknown):
        if note != BASIS:
            console.print(f"[dim]-[/] {escape(note)}.", highlight=False, soft_wrap=True)


_ARMS = (BASELINE, CANDIDATE)


def _cells(costs: Costs, unknown: Mapping[str, str], kind: str, arm: str) -> tuple[str, ...]:
    """In the order of COLUMNS, after kind and arm."""
    found = next((one for one in costs or () if (one.kind, one.arm) == (kind, arm)), None)
    if found is None:
        return (_UNKNOWN if arm in unknown else _NONE, *("" for _ in COLUMNS[3:]))
    return (
        _count(found.handoffs),
        _count(found.failed),
        _bytes(found.bytes),
        _bytes(found.wasted_bytes),
        _count(found.used_tokens),
        _count(found.wasted_tokens),
        *(seconds(value) for value in (found.waited_s, found.busy_s, found.hidden_s)),
    )


def _count(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.0f}"


def _bytes(value: float | None) -> str:
    return f"{value:,.0f}" if value is not None and value < 2**20 else size(value)
