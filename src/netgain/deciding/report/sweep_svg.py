"""The figure that answers "up to which load does it pay?": the effect over the load, with intervals and the crossover."""

import math

from markupsafe import Markup

from netgain.deciding.experiment.sweep import Sweep
from netgain.deciding.report.figures import nice_ticks
from netgain.deciding.report.svg import WIDTH, figure, line, rect, text

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 300.0, 64.0, 24.0, 26.0, 52.0


def sweep_svg(found: Sweep, threshold: float) -> Markup | None:
    """Loads on a logarithmic axis. None when no load has an effect."""
    known = [(point, point.effect) for point in found.points if point.effect is not None]
    if not known:
        return None
    values = [1.0, threshold, *(point.predicted for point, _ in known if point.predicted)]
    for _, effect in known:
        values += [effect.ratio, *(end for end in (effect.low, effect.high) if end is not None)]
    low, high = math.log(max(0.05, min(values))) - 0.06, math.log(min(50.0, max(values))) + 0.06
    loads = [point.concurrency for point in found.points]
    first, last = math.log(loads[0]), math.log(loads[-1])

    def x(load: float) -> float:
        share = (math.log(load) - first) / (last - first) if last > first else 0.5
        return LEFT + 26 + share * (WIDTH - LEFT - RIGHT - 52)

    def y(ratio: float) -> float:
        at = min(high, max(low, math.log(max(ratio, 1e-9))))
        return TOP + (high - at) / (high - low) * (HEIGHT - TOP - BOTTOM)

    bottom = HEIGHT - BOTTOM
    parts = [
        rect(
            LEFT,
            y(threshold),
            WIDTH - LEFT - RIGHT,
            y(1.0) - y(threshold),
            "noise",
            f"too little to matter: below {threshold:.3f}x",
        )
    ]
    crossing = found.crossover
    if crossing is not None:
        begin = LEFT if crossing.low is None else x(crossing.low)
        end = WIDTH - RIGHT if crossing.high is None else x(crossing.high)
        parts.append(rect(begin, TOP, end - begin, bottom - TOP, "crossing", found.crossover_says))
        parts.append(line(x(crossing.at), TOP, x(crossing.at), bottom, "joint"))
        middle = min(max((begin + end) / 2, LEFT + 90), WIDTH - RIGHT - 90)
        parts.append(
            text(middle, TOP - 8, f"gain {crossing.turn} at about {crossing.at:.3g} in flight", "tick", "middle")
        )
    for tick in nice_ticks(math.exp(low), math.exp(high), 6):
        if tick > 0.0:
            parts += [
                line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"),
                text(LEFT - 8, y(tick) + 4, f"{tick:g}x", "tick", "end"),
            ]
    parts.append(line(LEFT, y(1.0), WIDTH - RIGHT, y(1.0), "even"))
    for load in loads:
        parts.append(text(x(load), bottom + 18, str(load), "tick", "middle"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "concurrent requests", "tick", "middle"))
    path = " L".join(f"{x(point.concurrency):.1f} {y(effect.ratio):.1f}" for point, effect in known)
    parts.append(f'<path d="M{path}" class="curve line-candidate"/>')
    for point, effect in known:
        at = x(point.concurrency)
        if effect.low is not None and effect.high is not None:
            parts.append(line(at, y(effect.high), at, y(effect.low), "whisker"))
            for end in (effect.low, effect.high):
                parts.append(line(at - 6, y(end), at + 6, y(end), "whisker"))
        if point.predicted is not None:
            parts.append(
                f'<path d="M{at + 12:.1f} {y(point.predicted):.1f} l8 -5 v10 z" class="predicted"><title>predicted '
                f"{point.predicted:.2f}x</title></path>"
            )
        tip = f"{point.concurrency} in flight: {effect.ratio:.2f}x, {point.decision}"
        parts.append(
            f'<circle cx="{at:.1f}" cy="{y(effect.ratio):.1f}" r="6" class="dot-{point.decision}"><title>{tip}</title></circle>'
        )
    return figure(HEIGHT, f"Speedup by concurrent requests. {found.says}. {found.crossover_says}", parts)
