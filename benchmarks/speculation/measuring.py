"""The turns of the cells: arms built when they are first needed, all of a round at once by slices, until time is up."""

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.speculation.arms import CURVE_S, GOODPUT, NONE, Arm, Ran, Speculation, by_turns
from benchmarks.speculation.cells import Cell, Journal, Phase, Round, phases
from netgain.measuring.workload.item import Item

Pools = Mapping[str, Mapping[str, Sequence[Item]]]
"""Kind of cell (`waves`: speedup of several at once) -> category -> what it asks."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a result is about: rounds of other settings are never mixed with these."""

    model: str
    dtype: str
    k: int
    max_tokens: int
    threads: int | None
    drafts: tuple[str, ...]
    data: str | None
    control_tokens: int = 48
    wave_tokens: int = 128


class Bench:
    """Owns the engines from the moment that they are needed until `close`."""

    def __init__(
        self,
        asked: Asked,
        ways: Mapping[str, Speculation],
        pools: Pools,
        journal: Journal,
        *,
        controlled: Collection[str] | None = None,
        curve_s: float = CURVE_S,
    ) -> None:
        """`controlled`: which proposers the control is tried with (None: all). `curve_s`: what measuring the cost of steps, by
        which the control decides, may take."""
        self._phases = phases(pools["speedup"], pools["control"])
        self._controlled = [name for name in ways if controlled is None or name in controlled]
        self.cells = [cell for phase in self._phases for cell in phase.cells]
        self._asked = asked
        self._ways = ways
        self._pools = pools
        self._journal = journal
        self._curve_s = curve_s
        self._arms: dict[str, Arm] = {}
        self._turn_s: dict[Cell, float] = {}

    @property
    def info(self) -> Mapping[str, Any]:
        """What the engine without speculation is; empty when nothing ran."""
        return self._arms[NONE].info if NONE in self._arms else {}

    @property
    def expected(self) -> dict[str, float]:
        """Seconds until every cell has the rounds it is to have, by kind and concurrency, without the starts of engines."""
        left: dict[str, float] = {}
        for cells, rounds in self._phases:
            for cell in cells:
                due = max(0, rounds - len(self._journal.of(cell)))
                name = cell.kind if cell.kind != "speedup" else f"{cell.kind} c{cell.concurrency}"
                left[name] = left.get(name, 0.0) + self._expected_s(cell) * due / cell.rounds_at_once
        return left

    async def run(self, until_s: float) -> None:
        """Phase after phase, then all cells by turns, as long as a turn fits."""
        for phase in self._phases:
            await self._give(phase, until_s)
        await self._give(Phase(tuple(self.cells), sys.maxsize), until_s)

    async def _give(self, phase: Phase, until_s: float) -> None:
        """A turn to each of its cells, those with the fewest rounds first, until all have theirs or none fits."""
        while True:
            due = [cell for cell in phase.cells if len(self._journal.of(cell)) < phase.rounds]
            fewest = min(map(self._turns, due), default=0)
            ran = False
            for cell in due:
                if self._turns(cell) > fewest or time.monotonic() + self._expected_s(cell) > until_s:
                    continue
                await self.turn(cell)
                ran = True
            if not ran:
                return

    def close(self) -> None:
        for arm in self._arms.values():
            arm.close()

    def _turns(self, cell: Cell) -> int:
        return -(-len(self._journal.of(cell)) // cell.rounds_at_once)

    def _expected_s(self, cell: Cell) -> float:
        if cell in self._turn_s:
            return self._turn_s[cell]
        return cell.expected_s(len(self._names(cell)), self._pool(cell))

    def _pool(self, cell: Cell) -> Sequence[Item]:
        kind = "waves" if cell.kind == "speedup" and cell.concurrency > 1 else cell.kind
        return self._pools[kind][cell.category]

    def _names(self, cell: Cell) -> list[str]:
        if cell.kind == "control":
            return [NONE, *(name + GOODPUT for name in self._controlled)]
        return [NONE, *(self._ways if cell.kind == "speedup" else ())]

    async def turn(self, cell: Cell) -> None:
        """All rounds of one turn, each of them kept as soon as it is over."""
        arms = [await self._arm(name) for name in self._names(cell)]
        began_s = time.monotonic()
        pool = self._pool(cell)
        for _ in range(cell.rounds_at_once):
            number = len(self._journal.of(cell))
            items = cell.items(pool, number)
            turned = number % len(arms)
            order = arms[turned:] + arms[:turned]
            blocks = {arm.name: arm.block(items, cell.concurrency, f"{cell.key}/{number}") for arm in order}
            await by_turns(tuple(blocks.values()))
            ran = {name: block.ran for name, block in blocks.items()}
            self._journal.add(
                Round(cell=cell, number=number, order=tuple(ran), ran=ran, mismatches=_mismatches(ran, NONE))
            )
        self._turn_s[cell] = time.monotonic() - began_s
        print(f"{cell.key}: round {len(self._journal.of(cell))}, {self._turn_s[cell]:.1f} s", file=sys.stderr)

    async def _arm(self, name: str) -> Arm:
        if name in self._arms:
            return self._arms[name]
        way: dict[str, object] = dict(self._ways.get(name.removesuffix(GOODPUT), {}))
        if name.endswith(GOODPUT):
            way["control"] = "goodput"
        model = {"source": self._asked.model, "dtype": self._asked.dtype}
        print(f"starting the engine of {name}", file=sys.stderr)
        arm = self._arms[name] = Arm(name, model, way, self._asked.threads)
        if name.endswith(GOODPUT) and (self._first_of_its_kind() or not arm.knows_steps):
            await arm.measure_steps(self._curve_s)
        await arm.block([_WARM_UP], 1, "warm-up").run()
        return arm

    def _first_of_its_kind(self) -> bool:
        return sum(name.endswith(GOODPUT) for name in self._arms) == 1


def _mismatches(ran: Mapping[str, Ran], reference: str) -> dict[str, int]:
    right = ran[reference].answers
    return {
        name: sum(mine != theirs for mine, theirs in zip(one.answers, right, strict=True))
        for name, one in ran.items()
        if name != reference
    }


_WARM_UP = Item(id="warm-up", category="warm-up", max_tokens=16, prompt="1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,")
