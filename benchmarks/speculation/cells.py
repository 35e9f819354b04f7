"""The cells to be measured, in the order of what they tell, and the file that keeps what each round of them gave."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from benchmarks.speculation.arms import Ran
from benchmarks.speculation.prompts import COPY, PLAIN
from netgain.errors import UsageError
from netgain.measuring.workload.item import Item

CONCURRENCIES = (1, 4, 16)
LOADS = (1, 2, 4, 8, 16, 32)
_TELLING = (32, 1, 16, 8, 4, 2)  # where a control can be most wrong, first
ROUNDS_ALONE = 4  # rounds of one request before the next cell has its turn
ENOUGH = 5  # rounds, from which an interval says something
SURE = 8  # rounds of what has to be shown
SHOWN = ("multi_turn", "translation", "math_reasoning")  # groups of questions that are measured before the control
WAVE = 8  # requests of a round, at least, where several run at once
# For a token of a prompt and of an answer, of one stream and of several, for cells that have not run.
READ_S, SAID_S, SAID_IN_WAVES_S = 1 / 700, 0.007, 0.0045
CHARACTERS = 4  # of a token


class Cell(msgspec.Struct, frozen=True):
    """`speedup`: every proposer against none. `control`: proposers under the goodput control against none. `plain`: none alone,
    as the peers benchmark asks. Every round asks other prompts."""

    kind: Literal["speedup", "control", "plain"]
    category: str
    concurrency: int

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.category}/c{self.concurrency}"

    @property
    def requests(self) -> int:
        """Of one round and arm: at least one wave at the full concurrency."""
        if self.kind != "speedup":
            return max(2, self.concurrency)
        return 1 if self.concurrency == 1 else max(WAVE, self.concurrency)

    @property
    def rounds_at_once(self) -> int:
        return ROUNDS_ALONE if self.requests == 1 else 1

    def items(self, pool: Sequence[Item], number: int) -> list[Item]:
        """What round `number` asks; over and over from the beginning where the pool is smaller."""
        start = number * self.requests
        return [pool[(start + place) % len(pool)] for place in range(self.requests)]

    def expected_s(self, arms: int, pool: Sequence[Item]) -> float:
        """Of one turn, before there is a measurement."""
        items = self.items(pool, 0)
        asked = sum(len(message.content) for item in items for message in item.messages)
        asked += sum(len(item.prompt or "") for item in items)
        said = sum(item.max_tokens for item in items)
        each_s = SAID_S if self.concurrency == 1 else SAID_IN_WAVES_S
        return self.rounds_at_once * arms * (asked / CHARACTERS * READ_S + said * each_s)


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one cell: every arm once, in `order`. `mismatches` by arm: requests whose tokens are not those of none."""

    cell: Cell
    number: int
    order: tuple[str, ...]
    ran: dict[str, Ran]
    mismatches: dict[str, int]


class _Head(msgspec.Struct, frozen=True):
    settings: dict[str, object]


class Phase(NamedTuple):
    """Cells that take turns until each has so many rounds."""

    cells: tuple[Cell, ...]
    rounds: int


def phases(categories: Iterable[str], workloads: Iterable[str]) -> list[Phase]:
    """Every cell once, in the order of what it tells: what no speculation is on this machine; one request alone, where
    speculation is made for, on copies and on some questions; the control, beginning with the loads at which it could cost
    most; then all the rest."""
    names, loads = list(categories), list(workloads)
    alone, *others = CONCURRENCIES
    first = [name for name in names if name == COPY or name in SHOWN]
    later = [name for name in names if name not in first]
    found = [
        ((PLAIN_CELL,), ENOUGH),
        *(((Cell("speedup", name, alone),), SURE) for name in first),
        (tuple(Cell("control", name, load) for load in _TELLING for name in loads), ENOUGH),
        (tuple(Cell("speedup", name, alone) for name in later), SURE),
        (tuple(Cell("speedup", name, load) for load in others for name in names), ENOUGH),
    ]
    return [Phase(cells, rounds) for cells, rounds in found if cells]


PLAIN_CELL = Cell("plain", PLAIN, 1)


class Journal:
    """What was measured so far, a line for each round. A run that was cut short goes on behind its last whole line."""

    def __init__(self, path: Path | None, settings: Mapping[str, object], *, fresh: bool) -> None:
        """Raises UsageError where the file holds rounds of other settings."""
        self.path = path
        self.rounds: list[Round] = []
        head = msgspec.json.encode(_Head(dict(settings)))
        if path is None:
            return
        if path.is_file() and not fresh:
            first, *lines = path.read_bytes().split(b"\n")
            if first != head:
                raise UsageError(f"{path} holds rounds measured with other settings; give --fresh to begin anew")
            for line in lines:
                try:
                    self.rounds.append(msgspec.json.decode(line, type=Round))
                except msgspec.DecodeError:  # the end of a line that a crash cut off, or nothing
                    break
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = (msgspec.json.encode(one) for one in self.rounds)
        path.write_bytes(b"\n".join((head, *encoded)) + b"\n")

    def add(self, measured: Round) -> None:
        self.rounds.append(measured)
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(measured) + b"\n")

    def of(self, cell: Cell) -> list[Round]:
        return [one for one in self.rounds if one.cell == cell]
