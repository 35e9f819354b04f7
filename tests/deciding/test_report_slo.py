"""Pictures of the service level: shown where one was given, with the given one marked, and by load in a sweep."""

import itertools
import re

import msgspec
import pytest

from netgain.deciding.experiment.slo import Attained, SloOutcome
from netgain.deciding.experiment.slo_curve import SloCurve
from netgain.deciding.report.html import render_html
from netgain.deciding.report.slo_svg import attained_svg, slo_curve_svg
from tests.deciding.test_report import Balanced, adopted, outcome_of, swept_of, trial_of

__all__ = ["adopted"]  # a fixture

CURVE = SloCurve(
    text="ttft.p95=150ms",
    scales=(0.25, 0.5, 1.0, 2.0, 4.0),
    baseline=(0.0, 0.2, 0.5, 0.9, 1.0),
    candidate=(None, 0.4, 0.8, 1.0, 1.0),
)


def points(svg, arm: str) -> list[tuple[float, float]]:
    (path,) = re.findall(rf'<path d="([^"]*)" class="curve line-{arm}"', str(svg))
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_both_arms_are_drawn_over_the_scale_and_the_given_slo_is_marked():
    svg = slo_curve_svg(CURVE)
    baseline, candidate = points(svg, "baseline"), points(svg, "candidate")
    apart = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(baseline)]
    assert apart == pytest.approx([apart[0]] * 4, abs=0.11), "doublings are equally far apart"
    assert [y for _, y in baseline] == sorted((y for _, y in baseline), reverse=True)
    assert len(candidate) == 4, "what is not known is not drawn"
    (mark,) = re.findall(r'<line x1="([\d.]+)"[^>]*class="even"', svg)
    assert float(mark) == baseline[2][0]
    assert "the SLO as given" in svg
    assert "<desc>baseline: 20.0% at 0.5x, 50.0% at 1x, 90.0% at 2x. candidate: 40.0% at 0.5x" in svg


def test_without_an_slo_nothing_is_said_of_it(make_record, adopted):
    page = render_html(outcome_of(trial_of(make_record)))
    assert "How tight an SLO could be kept" not in page
    assert slo_curve_svg(None) is None
    assert slo_curve_svg(msgspec.structs.replace(CURVE, baseline=(None,) * 5, candidate=(None,) * 5)) is None
    told = render_html(adopted)
    assert "How tight an SLO could be kept" in told
    assert "ttft.p95=500ms,itl.p99=50ms when all limits are scaled together" in told
    assert "Met the SLO" not in told, "there is no sweep"


@pytest.fixture
def swept(adopted):
    found = swept_of(adopted)
    parts = []
    for point, after in zip(found.sweep.points, (1.0, 0.9, 0.4, None), strict=True):
        met = None if after is None else Attained(share=after, low=after - 0.1, high=min(1.0, after + 0.1), requests=9)
        slo = SloOutcome(
            text="ttft.p95=500ms",
            baseline=Attained(share=0.5, low=0.4, high=0.6, requests=9),
            candidate=met,
            gained=None,
            gained_low=None,
            gained_high=None,
        )
        parts.append(msgspec.structs.replace(point, slo=slo))
    return msgspec.structs.replace(found, sweep=msgspec.structs.replace(found.sweep, points=tuple(parts)))


def test_a_sweep_shows_attainment_by_load_and_arm(swept, adopted):
    svg = attained_svg(swept.sweep)
    assert (str(svg).count('class="dot-baseline"'), str(svg).count('class="dot-candidate"')) == (4, 3)
    assert "candidate: 100.0% at 1, 90.0% at 4, 40.0% at 16." in svg
    page = render_html(swept)
    assert "Met the SLO" in page
    assert "50.0% → 40.0%" in page
    assert "50.0% → unknown" in page
    parser = Balanced()
    parser.feed(page)
    assert not parser.open
    assert attained_svg(swept_of(adopted).sweep) is None, "no load was held to an SLO"
    assert attained_svg(None) is None
