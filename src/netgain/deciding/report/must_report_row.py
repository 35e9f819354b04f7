"""One figure that a technique owes its reader."""

from typing import NamedTuple

NONE = "–"  # the arm has no such thing


class Row(NamedTuple):
    """A figure as it is written, of each arm."""

    figure: str
    baseline: str
    candidate: str
