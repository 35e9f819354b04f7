"""How many requests meet the service level: were it tighter or looser, and, in a sweep, by load."""

import math
from collections.abc import Sequence

from markupsafe import Markup

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.experiment.slo_curve import SloCurve
from netgain.deciding.experiment.sweep import Sweep
from netgain.deciding.report.figures import share
from netgain.deciding.report.svg import WIDTH, figure, line, text

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 250.0, 52.0, 18.0, 24.0, 46.0
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def slo_curve_svg(found: SloCurve | None) -> Markup | None:
    """Share of requests that meet all limits, each scaled by the factor at the foot; None where nothing could be judged."""
    if found is None:
        return None
    arms = {BASELINE: found.baseline, CANDIDATE: found.candidate}
    if not any(value is not None for values in arms.values() for value in values):
        return None
    low, high = math.log(found.scales[0]), math.log(found.scales[-1])

    def x(factor: float) -> float:
        return LEFT + (math.log(factor) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    parts = _grid()
    for factor in FACTORS:
        parts.append(text(x(factor), _y(0.0) + 18, f"{factor:g}x", "tick", "middle"))
    parts += [line(x(1.0), TOP, x(1.0), _y(0.0), "even"), text(x(1.0), TOP - 8, "the SLO as given", "tick", "middle")]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "all limits of the SLO times", "tick", "middle"))
    told = []
    for arm, values in arms.items():
        parts.append(_curve([(x(factor), value) for factor, value in zip(found.scales, values, strict=True)], arm))
        at = {factor: values[found.scales.index(factor)] for factor in (0.5, 1.0, 2.0) if factor in found.scales}
        told.append(f"{arm}: " + ", ".join(f"{share(value)} at {factor:g}x" for factor, value in at.items()) + ".")
    return figure(HEIGHT, f"Share of requests that meet {found.text}, tighter and looser", parts, told=" ".join(told))


def attained_svg(found: Sweep | None) -> Markup | None:
    """Share of requests that met the SLO by load, with intervals; None where no load has one."""
    points = (
        [] if found is None else [(point.concurrency, point.slo) for point in found.points if point.slo is not None]
    )
    by_arm = {
        BASELINE: [(load, slo.baseline) for load, slo in points],
        CANDIDATE: [(load, slo.candidate) for load, slo in points],
    }
    if not any(met is not None for values in by_arm.values() for _, met in values):
        return None
    first, last = math.log(points[0][0]), math.log(points[-1][0])

    def x(load: float) -> float:
        place = (math.log(load) - first) / (last - first) if last > first else 0.5
        return LEFT + 26 + place * (WIDTH - LEFT - RIGHT - 52)

    parts = _grid()
    for load, _ in points:
        parts.append(text(x(load), _y(0.0) + 18, str(load), "tick", "middle"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "concurrent requests", "tick", "middle"))
    told = []
    for (arm, values), aside in zip(by_arm.items(), (-4.0, 4.0), strict=True):
        known = [(load, met) for load, met in values if met is not None]
        parts.append(_curve([(x(load) + aside, met.share) for load, met in known], arm))
        kind = "whisker" if arm == CANDIDATE else "whisker-baseline"
        for load, met in known:
            at = x(load) + aside
            parts.append(line(at, _y(met.high), at, _y(met.low), kind))
            tip = f"{arm}, {load} in flight: {share(met.share)} ({share(met.low)} to {share(met.high)})"
            parts.append(
                f'<circle cx="{at:.1f}" cy="{_y(met.share):.1f}" r="5" class="dot-{arm}"><title>{tip}</title></circle>'
            )
        told.append(f"{arm}: " + ", ".join(f"{share(met.share)} at {load}" for load, met in known) + ".")
    return figure(HEIGHT, f"Share of requests that met {points[0][1].text}, by load", parts, told=" ".join(told))


def _y(value: float) -> float:
    return TOP + (1.0 - value) * (HEIGHT - TOP - BOTTOM)


def _grid() -> list[str]:
    parts = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts += [
            line(LEFT, _y(value), WIDTH - RIGHT, _y(value), "grid"),
            text(LEFT - 8, _y(value) + 4, f"{value:.0%}", "tick", "end"),
        ]
    return parts


def _curve(points: Sequence[tuple[float, float | None]], arm: str) -> str:
    """A line through what is known, broken where it is not."""
    path, pen = [], "M"
    for x, value in points:
        if value is None:
            pen = "M"
        else:
            path.append(f"{pen}{x:.1f} {_y(value):.1f}")
            pen = "L"
    return f'<path d="{" ".join(path)}" class="curve line-{arm}"><title>{arm}</title></path>'
