"""The user's own task set: prompts with what a right answer is, one JSON object a line."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from netgain.errors import UsageError
from netgain.measuring.workload.item import Item, Message
from netgain.plain_file import read_plain

Match = Literal["exact", "contains", "regex", "number", "choice", "json", "scorer"]
_EXAMPLE = '{"id": "t1", "prompt": "2 + 2 = ", "expected": 4, "max_tokens": 8}'


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One question. `match` says how the answer is held against `expected`; where it is left out the type of `expected` says.

    `contains` takes a text or several, of which one must occur. `number` compares the last number of the answer within
    `tolerance` (absolute) or `relative_tolerance`. `choice` reads which of `choices` the answer names. `scorer` leaves it to
    the scorer command. `chunks` are pieces of its text, as those of a workload's item.
    """

    id: str
    prompt: str | None = None
    messages: tuple[Message, ...] = ()
    expected: Any = None
    match: Match | None = None
    category: str = "tasks"
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    tolerance: float = 0.0
    relative_tolerance: float = 0.0
    choices: tuple[str, ...] = ()
    ignore_case: bool = False
    chunks: tuple[str, ...] = ()

    def item(self, seed: int) -> Item:
        """The request that asks it, greedily."""
        return Item(
            id=self.id,
            category=self.category,
            max_tokens=self.max_tokens,
            messages=self.messages,
            prompt=self.prompt,
            stop=self.stop,
            seed=seed,
            chunks=self.chunks,
        )

    def problem(self) -> str | None:
        """What makes the task impossible to ask or to judge, or None. Only after `match` was settled."""
        if problem := self.item(0).problem():
            return problem
        for name, value in (("tolerance", self.tolerance), ("relative_tolerance", self.relative_tolerance)):
            if not (math.isfinite(value) and value >= 0.0):
                return f"{name} is {value}; it must be at least 0"
        return _EXPECTATIONS[self.match](self) if self.match in _EXPECTATIONS else None


def tasks_of(items: Sequence[Item]) -> tuple[Task, ...]:
    """The items that say what is right: their answers must hold one of the texts, whatever its case."""
    return tuple(
        Task(
            id=item.id,
            prompt=item.prompt,
            messages=item.messages,
            expected=list(item.answers),
            match="contains",
            ignore_case=True,
            category=item.category,
            max_tokens=item.max_tokens,
            stop=item.stop,
            chunks=item.chunks,
        )
        for item in items
        if item.answers
    )


def load_tasks(path: Path, scorer: bool) -> tuple[Task, ...]:
    """Read and check a file. `scorer`: there is a scorer command, which judges every task that names no other match.

    Raises UsageError that names the file or the faulty line.
    """
    try:
        data = read_plain(path.expanduser())
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the tasks {path} cannot be read: {reason}; give a JSONL file") from error
    tasks: list[Task] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"tasks {path}, line {number}"
        try:
            task = msgspec.json.decode(line, type=Task)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{where}: {error}; each line must be a JSON object like {_EXAMPLE}") from error
        task = msgspec.structs.replace(task, match=task.match or ("scorer" if scorer else _by_type(task)))
        if task.match == "scorer" and not scorer:
            raise UsageError(f"{where}: this task is for a scorer; give one with --scorer COMMAND")
        if problem := task.problem():
            raise UsageError(f"{where}: {problem}")
        if task.id in lines:
            raise UsageError(f"{where}: the id {task.id!r} stands in line {lines[task.id]}, too; ids must be unique")
        lines[task.id] = number
        tasks.append(task)
    if not tasks:
        raise UsageError(f"the tasks {path} are empty; give one JSON object a line, like {_EXAMPLE}")
    return tuple(tasks)


def _by_type(task: Task) -> Match:
    match task.expected:
        case bool() | dict():
            return "json"
        case int() | float():
            return "number"
        case list() if task.expected and all(isinstance(one, str) for one in task.expected):
            return "contains"
        case list():
            return "json"
        case _:
            return "choice" if task.choices else "exact"


def _needs_text(task: Task) -> str | None:
    if isinstance(task.expected, str) and task.expected.strip():
        return None
    return f"expected is {task.expected!r}; {task.match} needs a text"


def _needs_texts(task: Task) -> str | None:
    several = task.expected if isinstance(task.expected, list) else [task.expected]
    if several and all(isinstance(one, str) and one for one in several):
        return None
    return f"expected is {task.expected!r}; contains needs a text or a list of texts"


def _needs_pattern(task: Task) -> str | None:
    if problem := _needs_text(task):
        return problem
    try:
        re.compile(task.expected)
    except re.error as error:
        return f"expected is {task.expected!r}, which is no regular expression: {error}"
    return None


def _needs_number(task: Task) -> str | None:
    value = task.expected
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return None
    return f"expected is {value!r}; number needs a number"


def _needs_choice(task: Task) -> str | None:
    if len(set(task.choices)) < 2 or len(set(task.choices)) < len(task.choices) or not all(task.choices):
        return f"choices are {list(task.choices)}; choice needs at least two different ones"
    return None if task.expected in task.choices else f"expected is {task.expected!r}, which is none of the choices"


_EXPECTATIONS = {
    "exact": _needs_text,
    "contains": _needs_texts,
    "regex": _needs_pattern,
    "number": _needs_number,
    "choice": _needs_choice,
}
