"""A break-even surface as one self-contained HTML page: it needs no network and shows only what the JSON beside it holds."""

from markupsafe import Markup

from netgain.cost.break_even import Surface
from netgain.deciding.report.figures import share
from netgain.deciding.report.html import templates
from netgain.deciding.report.surface import DraftSurface
from netgain.deciding.report.svg import WIDTH, figure, line, text

TEMPLATE = "surface.html.j2"
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 300.0, 64.0, 76.0, 16.0, 52.0
_TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def render_surface(document: DraftSurface) -> str:
    """Render. All text from outside (model names, subjects) is escaped."""
    picture = break_even_svg(document.surface)
    return templates().get_template(TEMPLATE).render(o=document, s=document.surface, picture=picture)


def break_even_svg(found: Surface) -> Markup | None:
    """The acceptance from which drafts pay, over the batch, a line for every length; None where nothing pays or is known. A
    line ends where not even drafts that all stand pay."""
    batches = [plane.batch for plane in found.planes]
    lines: list[tuple[int, list[tuple[int, float]]]] = []
    for number, k in enumerate(found.lengths):
        columns = [(place, plane.columns[number]) for place, plane in enumerate(found.planes)]
        points = [(at, one.break_even) for at, one in columns if one is not None and one.break_even is not None]
        if points:
            lines.append((k, points))
    if not lines:
        return None

    def x(place: int) -> float:
        span = WIDTH - _LEFT - _RIGHT - 40
        return _LEFT + 20 + (place / (len(batches) - 1) * span if len(batches) > 1 else span / 2)

    def y(acceptance: float) -> float:
        return _TOP + (1.0 - acceptance) * (_HEIGHT - _TOP - _BOTTOM)

    parts: list[str] = []
    for tick in _TICKS:
        parts += [
            line(_LEFT, y(tick), WIDTH - _RIGHT, y(tick), "grid"),
            text(_LEFT - 8, y(tick) + 4, share(tick, 0), "tick", "end"),
        ]
    for place, batch in enumerate(batches):
        parts.append(text(x(place), _HEIGHT - _BOTTOM + 18, str(batch), "tick", "middle"))
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(text(middle, _HEIGHT - 10, "requests at once", "tick", "middle"))
    labels: list[float] = []
    for k, points in lines:
        path = " L".join(f"{x(at):.1f} {y(chance):.1f}" for at, chance in points)
        parts.append(f'<path d="M{path}" class="curve line-candidate"/>')
        for at, chance in points:
            tip = f"K {k}, {batches[at]} at once: pays from {chance:.0%}"
            parts.append(
                f'<circle cx="{x(at):.1f}" cy="{y(chance):.1f}" r="4" class="dot-candidate"><title>{tip}</title></circle>'
            )
        last, end = points[-1]
        height = _free(y(end) + 4, labels)
        labels.append(height)
        parts.append(text(x(last) + 9, height, f"K {k}", "tick"))
    told = "; ".join(
        f"K {k}: " + ", ".join(f"{chance:.0%} at {batches[at]}" for at, chance in points) for k, points in lines
    )
    return figure(
        _HEIGHT, "Acceptance from which drafts pay, by requests at once and drafts per step", parts, told=told
    )


def _free(height: float, taken: list[float]) -> float:
    """The nearest place below `height` where no other label is written."""
    while any(abs(height - other) < 12 for other in taken):
        height += 12
    return height
