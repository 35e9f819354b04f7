"""Times of several sides under several headings as horizontal bars, with a mark for the slow ones."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from netgain.deciding.report.figures import nice_ticks, seconds
from netgain.deciding.report.svg import WIDTH, figure, line, rect, text

_LEFT, _RIGHT, _ROW, _HEAD = 190.0, 84.0, 22.0, 30.0


class Bar(NamedTuple):
    """One side: its mean and its p95 in seconds (None: not known) and the class of its bar."""

    name: str
    mean_s: float | None
    p95_s: float | None
    kind: str


def bars_svg(groups: Mapping[str, Sequence[Bar]], title: str, axis: str) -> Markup | None:
    """All on one scale from 0; None where no bar has a value."""
    ends = [value for bars in groups.values() for bar in bars for value in (bar.mean_s, bar.p95_s) if value is not None]
    if not ends or max(ends) <= 0.0 or max(ends) == float("inf"):
        return None
    scale = (WIDTH - _LEFT - _RIGHT) / max(ends)
    height = sum(_HEAD + _ROW * len(bars) for bars in groups.values())
    parts: list[str] = []
    for tick in nice_ticks(0.0, max(ends), 6):
        x = _LEFT + tick * scale
        parts += [line(x, 6, x, height, "grid"), text(x, height + 15, f"{tick * 1e3:g}", "tick", "middle")]
    parts.append(text(_LEFT, height + 32, axis, "tick"))
    y = 0.0
    for heading, bars in groups.items():
        parts.append(text(0, y + 20, heading, "heading"))
        y += _HEAD
        for bar in bars:
            parts.append(text(_LEFT - 10, y + 14, bar.name, anchor="end"))
            if bar.mean_s is None:
                parts.append(text(_LEFT + 4, y + 14, "unknown", "tick"))
            else:
                tip = f"{heading}, {bar.name}: mean {seconds(bar.mean_s)}, p95 {seconds(bar.p95_s)}"
                parts.append(rect(_LEFT, y + 3, bar.mean_s * scale, _ROW - 7, bar.kind, tip))
                most = max(bar.mean_s, bar.p95_s or 0.0)
                if bar.p95_s is not None:
                    x = _LEFT + bar.p95_s * scale
                    parts.append(line(x, y + 2, x, y + _ROW - 3, "even"))
                parts.append(text(_LEFT + most * scale + 7, y + 14, seconds(bar.mean_s), "value"))
            y += _ROW
    return figure(height + 40, title, parts)
