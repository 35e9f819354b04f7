"""Whether an answer is right, by the rule of its task: 1.0 or 0.0. What cannot be read in an answer is a wrong answer."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from netgain.measuring.quality.tasks import Task

_NUMBER = re.compile(r"[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+−]?\.\d+(?:[eE][-+]?\d+)?")
_FENCE = re.compile(r"```(?:\w+)?\s*\n(.*?)```", re.DOTALL)
_SAID = re.compile(r"\banswer(?:\s+is\b)?\s*:?\s*", re.IGNORECASE)


def grade(task: Task, answer: str) -> float:
    """Only for tasks whose match is not `scorer`."""
    return float(_RULES[str(task.match)](task, answer))


def _exact(task: Task, answer: str) -> bool:
    """Equal but for white space around it."""
    return _folded(task, answer.strip()) == _folded(task, str(task.expected).strip())


def _contains(task: Task, answer: str) -> bool:
    several = task.expected if isinstance(task.expected, list) else [task.expected]
    return any(_folded(task, one) in _folded(task, answer) for one in several)


def _regex(task: Task, answer: str) -> bool:
    return re.search(str(task.expected), answer, re.IGNORECASE if task.ignore_case else 0) is not None


def _number(task: Task, answer: str) -> bool:
    """The last number said, since reasoning comes before a result. 1,234.5 is one number."""
    found = _NUMBER.findall(answer)
    if not found:
        return False
    value = float(found[-1].replace(",", "").replace("−", "-"))
    return math.isclose(value, task.expected, rel_tol=task.relative_tolerance, abs_tol=task.tolerance)


def _choice(task: Task, answer: str) -> bool:
    return chosen(task.choices, answer) == str(task.expected)


def chosen(choices: tuple[str, ...], answer: str) -> str | None:
    """Which choice an answer names, or None: after its last "answer is", else at its beginning, else the only one it holds."""
    said = list(_SAID.finditer(answer))
    for text in (answer[said[-1].end() :] if said else "", answer):
        start = text.lstrip(" \t\n([{*\"'")
        for choice in sorted(choices, key=len, reverse=True):  # "AB" before "A"
            if start[: len(choice)].casefold() == choice.casefold() and not start[len(choice) :][:1].isalnum():
                return choice
    # A single letter inside a sentence may be a word, so it counts as it is written
    held = [
        choice
        for choice in choices
        if re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", answer, 0 if len(choice) == 1 else re.IGNORECASE)
    ]
    return held[0] if len(held) == 1 else None


def _json(task: Task, answer: str) -> bool:
    """Equal as data: order of keys and 1 against 1.0 do not matter; true is not 1. A fenced block counts as the answer."""
    fenced = _FENCE.findall(answer)
    try:
        return _same(msgspec.json.decode((fenced[-1] if fenced else answer).strip()), task.expected)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _folded(task: Task, text: str) -> str:
    return text.casefold() if task.ignore_case else text


_RULES: Mapping[str, Callable[[Task, str], bool]] = {
    "exact": _exact,
    "contains": _contains,
    "regex": _regex,
    "number": _number,
    "choice": _choice,
    "json": _json,
}
