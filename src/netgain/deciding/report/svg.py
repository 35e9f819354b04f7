"""The pictures of the report as inline SVG: no script, no network, colours from the page's style (light and dark).

Every number in a picture also stands in a table of the page; pictures carry a title for screen readers.
"""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from netgain.deciding.experiment.statistics import Effect
from netgain.deciding.experiment.waterfall import Waterfall
from netgain.deciding.report.figures import ms, nice_ticks
from netgain.ledger.stage import Stage

WIDTH = 720


def figure(height: float, title: str, parts: Sequence[str], width: float = WIDTH, told: str = "") -> Markup:
    """A picture that scales with the page; `title` is read out in its place, and `told`, what it shows, after it. One as wide as
    the page scrolls where that would make its words too small to read (a phone)."""
    described = f"<desc>{escape(told)}</desc>" if told else ""
    wide = width >= WIDTH
    kind = "wide" if wide else "narrow"
    picture = (
        f'<svg viewBox="0 0 {width:g} {height:g}" class="{kind}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{described}{''.join(parts)}</svg>"
    )
    if wide:
        label = f"Picture: {escape(title)}"
        picture = f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">{picture}</div>'
    return Markup(picture)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Words at a place, escaped."""
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    """A rectangle that tells `tip` when pointed at."""
    told = f"<title>{escape(tip)}</title>" if tip else ""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}"'
    return f'<rect {place} class="{kind}" rx="2">{told}</rect>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


SMALL = 0.005  # a stage that moves the mean by less than this share of the baseline joins the others of its kind


def waterfall_svg(fall: Waterfall) -> Markup:
    """From the baseline's mean time, stage by stage, to the candidate's. Small stages are joined; the table has all."""
    large = {stage: saved for stage, saved in fall.saved_ns.items() if abs(saved) >= SMALL * fall.baseline_ns}
    changes = [(str(stage), saved) for stage, saved in large.items()]
    rest = sum(fall.saved_ns.values()) - sum(large.values())
    if len(large) < len(fall.saved_ns):
        changes.append((f"{len(fall.saved_ns) - len(large)} other stages", rest))
    rows: list[tuple[str, int, int, str, str]] = [
        ("baseline", 0, fall.baseline_ns, "bar-baseline", ms(fall.baseline_ns / 1e6))
    ]
    at = fall.baseline_ns
    for name, saved in sorted(changes, key=lambda pair: -pair[1]):
        told = f"{name} saved" if saved > 0 else f"{name} spent" if saved < 0 else name
        rows.append((told, at, at - saved, "bar-saved" if saved > 0 else "bar-spent", signed(-saved)))
        at -= saved
    rows.append(("residual (client, network)", at, at - fall.residual_ns, "bar-residual", signed(-fall.residual_ns)))
    rows.append(("candidate", 0, fall.candidate_ns, "bar-candidate", ms(fall.candidate_ns / 1e6)))
    left, right, row = 190.0, 90.0, 30.0
    edges = [edge for _, start, end, _, _ in rows for edge in (start, end)]
    low, high = min(0, *edges), max(edges)
    scale = (WIDTH - left - right) / max(1, high - low)
    parts: list[str] = []
    for index, (name, start, end, kind, label) in enumerate(rows):
        y = 6 + index * row
        x1, x2 = (left + (min(start, end) - low) * scale, left + (max(start, end) - low) * scale)
        parts.append(text(left - 10, y + 16, name, anchor="end"))
        parts.append(rect(x1, y + 3, max(1.5, x2 - x1), row - 10, kind, f"{name}: {label}"))
        parts.append(text(x2 + 6, y + 16, label, "value"))
        if index + 1 < len(rows):
            x = left + (end - low) * scale
            parts.append(line(x, y + row - 7, x, y + row + 3, "joint"))
    return figure(12 + len(rows) * row, "Mean time per request from baseline to candidate, by stage", parts)


def signed(ns: float) -> str:
    """A change in milliseconds with its sign."""
    return f"{'+' if ns >= 0 else '−'}{ms(abs(ns) / 1e6)}"


def interval_svg(effect: Effect, threshold: float, predicted: float | None) -> Markup:
    """The measured speedup with its interval, the line it had to clear, and what was predicted."""
    marks = [1.0, threshold, effect.ratio, *(v for v in (effect.low, effect.high, predicted) if v is not None)]
    low, high = math.log(min(marks)) - 0.08, math.log(max(marks)) + 0.08
    left, right, middle = 20.0, 20.0, 44.0

    def x(ratio: float) -> float:
        return left + (math.log(ratio) - low) / (high - low) * (WIDTH - left - right)

    parts = [line(left, middle, WIDTH - right, middle, "axis")]
    for tick in nice_ticks(math.exp(low), math.exp(high), 7):
        parts += [
            line(x(tick), middle, x(tick), middle + 5, "axis"),
            text(x(tick), middle + 20, f"{tick:g}x", "tick", "middle"),
        ]
    parts += [line(x(1.0), 12, x(1.0), middle, "even"), text(x(1.0), 9, "no change", "tick", "middle")]
    parts.append(
        rect(x(1.0), middle - 10, x(threshold) - x(1.0), 20, "noise", f"too little to matter: below {threshold:.3f}x")
    )
    if effect.low is not None and effect.high is not None:
        tip = f"95 % interval {effect.low:.3f}x to {effect.high:.3f}x"
        parts.append(rect(x(effect.low), middle - 6, x(effect.high) - x(effect.low), 12, "bar-candidate", tip))
    parts.append(
        f'<circle cx="{x(effect.ratio):.1f}" cy="{middle:.1f}" r="6" class="point"><title>measured</title></circle>'
    )
    if predicted is not None:
        at = x(predicted)
        parts.append(
            f'<path d="M{at:.1f} {middle - 9:.1f} l6 -11 h-12 z" class="predicted"><title>predicted</title></path>'
        )
    title = f"Measured speedup {effect.ratio:.2f}x" + (f", predicted {predicted:.2f}x" if predicted is not None else "")
    return figure(70, title, parts)


def ecdf_svg(series: Mapping[str, Sequence[float]], unit: str, scale: float) -> Markup | None:
    """Share of values at or below x, one step line per arm; None when an arm has no values."""
    known = {name: sorted(value * scale for value in values if math.isfinite(value)) for name, values in series.items()}
    if not known or not all(known.values()):
        return None
    left, right, top, bottom, height = 46.0, 14.0, 10.0, 40.0, 230.0
    width = 350.0
    lowest, highest = min(v[0] for v in known.values()), max(v[-1] for v in known.values())
    pad = (highest - lowest) * 0.04 or max(1e-9, highest * 0.05)
    low, high = max(0.0, lowest - pad), highest + pad

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (width - left - right)

    def y(share: float) -> float:
        return top + (1.0 - share) * (height - top - bottom)

    parts: list[str] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts += [
            line(left, y(share), width - right, y(share), "grid"),
            text(left - 6, y(share) + 4, f"{share:.0%}", "tick", "end"),
        ]
    for tick in nice_ticks(low, high, 5):
        parts += [
            line(x(tick), y(0), x(tick), y(0) + 4, "axis"),
            text(x(tick), y(0) + 17, f"{tick:g}", "tick", "middle"),
        ]
    parts.append(text((left + width - right) / 2, height - 6, unit, "tick", "middle"))
    for name, values in known.items():
        path = [f"M{x(low):.1f} {y(0):.1f}"]
        for index, value in enumerate(values):
            path.append(f"H{x(value):.1f}V{y((index + 1) / len(values)):.1f}")
        path.append(f"H{x(high):.1f}")
        parts.append(
            f'<path d="{"".join(path)}" class="curve line-{escape(name)}"><title>{escape(name)}</title></path>'
        )
    return figure(height, f"Cumulative distribution, {unit}", parts, width)


def shares_svg(arms: Mapping[str, Mapping[Stage, float]]) -> Markup:
    """One stacked bar per arm: share of end-to-end time by stage, the rest is client and network."""
    left, right, row = 90.0, 10.0, 40.0
    parts: list[str] = []
    for index, (name, shares) in enumerate(arms.items()):
        y = 4 + index * row
        parts.append(text(left - 10, y + 20, name, anchor="end"))
        at = 0.0
        rest = max(0.0, 1.0 - sum(shares.values()))
        for stage, share in (*shares.items(), ("client and network", rest)):
            width = share * (WIDTH - left - right)
            if share <= 0.0:
                continue
            kind = f"stage stage-{stage}" if isinstance(stage, Stage) else "stage stage-rest"
            parts.append(rect(left + at, y + 4, max(0.6, width), row - 14, kind, f"{name}, {stage}: {share:.1%}"))
            if width > 74:
                parts.append(text(left + at + width / 2, y + 21, f"{stage} {share:.0%}", "inside", "middle"))
            at += width
    return figure(8 + len(arms) * row, "Share of end-to-end time by stage", parts)


def acceptance_svg(drafted: Sequence[int], accepted: Sequence[int], predicted: Sequence[float | None]) -> Markup:
    """Share of drafts accepted at each position, with the predicted share as a mark."""
    left, top, bottom, height = 46.0, 10.0, 36.0, 180.0
    slot = min(64.0, (WIDTH - left - 10) / max(1, len(drafted)))

    def y(share: float) -> float:
        return top + (1.0 - share) * (height - top - bottom)

    parts: list[str] = []
    for share in (0.0, 0.5, 1.0):
        parts += [
            line(left, y(share), left + slot * len(drafted), y(share), "grid"),
            text(left - 6, y(share) + 4, f"{share:.0%}", "tick", "end"),
        ]
    for position, (tried, kept) in enumerate(zip(drafted, accepted, strict=True)):
        share = kept / tried if tried else 0.0
        x = left + position * slot
        tip = f"position {position + 1}: {kept} of {tried} accepted"
        parts.append(rect(x + slot * 0.15, y(share), slot * 0.7, y(0) - y(share), "bar-candidate", tip))
        parts.append(text(x + slot / 2, y(0) + 16, str(position + 1), "tick", "middle"))
        expected = predicted[position] if position < len(predicted) else None
        if expected is not None:
            parts.append(line(x + slot * 0.05, y(expected), x + slot * 0.95, y(expected), "mark-predicted"))
    parts.append(text(left, height - 4, "position in the draft", "tick"))
    return figure(height, "Share of drafts accepted by position", parts)
