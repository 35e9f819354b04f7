"""A long benchmark in pieces: each is kept as soon as it is measured, so that an interrupted run goes on where it was, and parts
that were measured in several runs end in one result."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _report

Value = dict[str, Any]


class Piece(NamedTuple):
    """`measure` gives what can be written as JSON. `seconds`: about how long it takes on two quiet cores."""

    name: str
    seconds: float
    measure: Callable[[], Value]


class Found(NamedTuple):
    """What pieces say. `missing`: why a figure is unknown. `wrong`: answers that differ; None where none was compared."""

    figures: dict[str, _report.Figure]
    context: dict[str, object]
    missing: dict[str, str]
    wrong: int | None = None


class Kept:
    """What was measured at the `commit` of this tree, a JSON object a line in FILE.pieces beside the result. What other commits
    measured stays in the file and is not used. Without a path nothing is kept beyond this run."""

    def __init__(self, result: Path | None, commit: str | None, again: bool = False) -> None:
        self._path = None if result is None else result.with_name(result.name + ".pieces")
        self._commit = commit
        self._values: dict[str, Value] = {}
        self.others = 0
        if self._path is None or not self._path.exists():
            return
        if again:
            self._path.unlink()
            return
        for line in self._path.read_text().splitlines():
            try:
                one = json.loads(line)
            except json.JSONDecodeError:  # cut short when the run was killed
                continue
            if commit is not None and one["commit"] == commit:
                self._values[one["name"]] = one["value"]
            else:
                self.others += 1

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def of(self, prefix: str) -> dict[str, Value]:
        """By the rest of their names, in the order in which they were measured."""
        return {name.removeprefix(prefix): value for name, value in self._values.items() if name.startswith(prefix)}

    def add(self, name: str, value: Value) -> None:
        self._values[name] = value
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"commit": self._commit, "name": name, "value": value}, default=str)
            with self._path.open("a") as file:
                print(line, file=file, flush=True)


def run(pieces: Sequence[Piece], kept: Kept, saved: Callable[[], None]) -> None:
    """Measure what is not kept yet, and say on standard error what is measured and about how long the rest takes. `saved` is
    called after each piece."""
    todo = [one for one in pieces if one.name not in kept]
    before = len(pieces) - len(todo)
    _say(
        f"{len(todo)} measurements, about {_minutes(todo)} min on two quiet cores"
        + (f"; {before} were measured before" if before else "")
        + (f"; {kept.others} of another commit are not used" if kept.others else "")
    )
    began_s = time.monotonic()
    for place, one in enumerate(todo):
        passed_s = time.monotonic() - began_s
        _say(f"{passed_s:5.0f} s  {place + 1}/{len(todo)} {one.name}, about {_minutes(todo[place:])} min to go")
        kept.add(one.name, one.measure())
        saved()
    _say(f"{time.monotonic() - began_s:5.0f} s  done")


def merged(parts: Iterable[Found], nothing: Mapping[str, _report.Figure]) -> Found:
    """All of them over `nothing`, the figures that there are, unknown; what no part says a reason for was not asked for."""
    figures = dict(nothing)
    context: dict[str, object] = {}
    missing: dict[str, str] = {}
    wrong: int | None = None
    for one in parts:
        figures |= one.figures
        context |= one.context
        missing |= one.missing
        if one.wrong is not None:
            wrong = (wrong or 0) + one.wrong
    unknown = [name for name, value in figures.items() if value is None]
    return Found(
        figures, context, {name: missing.get(name, "its part was not measured (--only)") for name in unknown}, wrong
    )


def _minutes(pieces: Iterable[Piece]) -> str:
    return f"{sum(one.seconds for one in pieces) / 60:.1f}"


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
