"""What an examination finds: one thing that was looked at, what was seen, what it means and how to mend it."""

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec


class State(StrEnum):
    OK = "ok"
    NOTE = "note"  # serves, but slower, smaller or otherwise than one might think
    PROBLEM = "problem"  # stops serving
    UNKNOWN = "unknown"  # could not be found out


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`mend` is a command or a setting that can be copied; None where there is nothing to mend."""

    area: str
    name: str
    state: State
    seen: str
    means: str | None = None
    mend: str | None = None


Check = Callable[[], Iterable[Finding]]


def ok(area: str, name: str, seen: str) -> Finding:
    return Finding(area=area, name=name, state=State.OK, seen=seen)


def note(area: str, name: str, seen: str, means: str, mend: str | None = None) -> Finding:
    return Finding(area=area, name=name, state=State.NOTE, seen=seen, means=means, mend=mend)


def problem(area: str, name: str, seen: str, means: str, mend: str) -> Finding:
    return Finding(area=area, name=name, state=State.PROBLEM, seen=seen, means=means, mend=mend)


def unknown(area: str, name: str, seen: str, mend: str | None = None) -> Finding:
    return Finding(area=area, name=name, state=State.UNKNOWN, seen=seen, mend=mend)
