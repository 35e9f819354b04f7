"""The page of several candidates as one self-contained HTML file: it needs no network and shows only what the JSON beside it
holds; each candidate's own page is linked."""

import math

from markupsafe import Markup, escape

from netgain.deciding.report.figures import nice_ticks
from netgain.deciding.report.html import templates
from netgain.deciding.report.several import CandidateLine, CandidatesDocument
from netgain.deciding.report.svg import WIDTH, figure, line, rect, text

TEMPLATE = "candidates.html.j2"
_LEFT, _RIGHT, _TOP, _ROW, _BOTTOM = 110.0, 24.0, 26.0, 40.0, 30.0


def render_candidates(document: CandidatesDocument) -> str:
    """Render. All text from outside (model names, errors) is escaped."""
    return templates().get_template(TEMPLATE).render(o=document, picture=candidates_svg(document))


def candidates_svg(document: CandidatesDocument) -> Markup | None:
    """A row for each candidate that was tried: its speedup with the interval at its level, and what was predicted. None where no
    effect is known."""
    known = [(one, one.effect) for one in document.tried if one.effect is not None]
    if not known:
        return None
    threshold = 1.0 + document.minimum_effect
    values = [1.0, threshold, *(one.predicted for one, _ in known if one.predicted)]
    for _, effect in known:
        values += [effect.ratio, *(end for end in (effect.low, effect.high) if end is not None)]
    low, high = math.log(max(0.05, min(values))) - 0.08, math.log(min(50.0, max(values))) + 0.08
    bottom = _TOP + _ROW * len(known)

    def x(ratio: float) -> float:
        at = min(high, max(low, math.log(max(ratio, 1e-9))))
        return _LEFT + (at - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    least = f"too little to matter: below {threshold:.3f}x"
    parts = [rect(x(1.0), _TOP, x(threshold) - x(1.0), bottom - _TOP, "noise", least)]
    for tick in nice_ticks(math.exp(low), math.exp(high), 7):
        if tick > 0.0:
            parts += [
                line(x(tick), _TOP, x(tick), bottom, "grid"),
                text(x(tick), bottom + 18, f"{tick:g}x", "tick", "middle"),
            ]
    parts += [line(x(1.0), _TOP, x(1.0), bottom, "even"), text(x(1.0), _TOP - 8, "no change", "tick", "middle")]
    for place, (one, effect) in enumerate(known):
        y = _TOP + _ROW * (place + 0.5)
        parts.append(text(_LEFT - 10, y + 4, one.technique, anchor="end"))
        if effect.low is not None and effect.high is not None:
            parts.append(line(x(effect.low), y, x(effect.high), y, "whisker"))
            parts += [line(x(end), y - 6, x(end), y + 6, "whisker") for end in (effect.low, effect.high)]
        if one.predicted is not None:
            at = x(one.predicted)
            parts.append(
                f'<path d="M{at:.1f} {y - 8:.1f} l5 -9 h-10 z" class="predicted"><title>predicted {one.predicted:.2f}x</title>'
                "</path>"
            )
        tip = f"{escape(one.technique)}: {effect.ratio:.2f}x, {one.decision}"
        parts.append(
            f'<circle cx="{x(effect.ratio):.1f}" cy="{y:.1f}" r="6" class="dot-{one.decision}"><title>{tip}</title></circle>'
        )
    told = "; ".join(_told(one) for one, _ in known)
    return figure(bottom + _BOTTOM, "Speedup of each candidate with its interval", parts, told=told)


def _told(one: CandidateLine) -> str:
    effect = one.effect
    assert effect is not None
    within = "no interval" if effect.low is None else f"{effect.low:.2f}x to {effect.high:.2f}x"
    guess = "" if one.predicted is None else f", predicted {one.predicted:.2f}x"
    return f"{one.technique} {effect.ratio:.2f}x ({within}){guess}: {one.decision}"
