"""The picture of all blocks in time: places, heights, starts of the servers, pauses, and what it says to who cannot see it."""

import re

import msgspec
import pytest

from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL
from netgain.deciding.report.html import render_html
from netgain.deciding.report.timeline_svg import placed, timeline_svg
from tests.deciding.test_report import Balanced, adopted

__all__ = ["adopted"]  # a fixture


def block(index, arm, began_s, took_s=10.0, median_s: float | None = 1.0, **more) -> Block:
    return Block(
        index=index, group=index, repeat=0, arm=arm, started_s=began_s, finished_s=began_s + took_s, idle_cpu={},
        foreign_cpu=None, lateness_p99_s=None, client_void=None, output_tokens=None, e2e_median_s=median_s, **more,
    )  # fmt: skip


TWO_STARTS = (
    block(0, BASELINE, 1000.0, median_s=2.0),
    block(1, CANDIDATE, 1010.0, median_s=1.0),
    block(2, CANDIDATE, 1035.0, median_s=1.0, start=1),
    block(3, BASELINE, 1045.0, median_s=4.0, start=1),
)


def bars(svg, kind: str) -> list[tuple[float, float, float]]:
    """(x, width, height) of all rectangles of a class."""
    found = re.findall(rf'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="([\d.]+)" class="{kind}"', str(svg))
    return [(float(x), float(width), float(height)) for x, width, height in found]


def test_blocks_lie_where_they_were_and_are_as_high_as_they_were_slow():
    svg = timeline_svg(TWO_STARTS)
    baseline, candidate = bars(svg, "bar-baseline"), bars(svg, "bar-candidate")
    assert [x for x, _, _ in baseline] == sorted(x for x, _, _ in baseline)
    assert len({width for _, width, _ in (*baseline, *candidate)}) == 1, "all took 10 s"
    heights = [height for _, _, height in (*baseline, *candidate)]
    assert [height / heights[1] for height in heights] == pytest.approx([0.5, 1.0, 0.25, 0.25])
    assert baseline[0][0] + baseline[0][1] == pytest.approx(candidate[0][0], abs=0.11)


def test_a_new_start_of_the_servers_is_a_marked_gap_as_wide_as_it_took():
    svg = timeline_svg(TWO_STARTS)
    ((x, width, _),) = bars(svg, "restart")
    begins, ten_seconds, _ = bars(svg, "bar-candidate")[0]
    assert width == pytest.approx(1.5 * ten_seconds, abs=0.2)
    assert x == pytest.approx(begins + ten_seconds, abs=0.11)
    assert "servers started again: 15.0 s" in svg
    assert "start 2" in svg
    assert bars(timeline_svg(TWO_STARTS[:2]), "restart") == []


def test_it_says_what_it_shows():
    svg = str(timeline_svg(TWO_STARTS))
    assert 'role="img" aria-label="All blocks in time, by arm"' in svg
    assert "<title>All blocks in time, by arm</title>" in svg
    (told,) = re.findall(r"<desc>(.*?)</desc>", svg)
    assert told == (
        "4 blocks over 55 s in 2 starts of the servers. "
        "baseline: medians of blocks from 2000 ms to 4000 ms, the slowest at 45 s. "
        "candidate: medians of blocks from 1000 ms to 1000 ms, the slowest at 35 s."
    )


def test_what_is_not_known_is_an_empty_frame_and_no_height():
    svg = timeline_svg((block(0, BASELINE, 0.0), block(1, CANDIDATE, 10.0, median_s=None)))
    assert bars(svg, "bar-candidate") == []
    assert len(bars(svg, "bar-unknown")) == 1
    assert "median unknown" in svg
    assert "candidate: medians unknown." in svg


@pytest.mark.parametrize("later_s", [3.0, 90_000.0])
def test_a_run_that_went_on_later_or_under_another_clock_is_drawn_with_its_pause_cut(later_s):
    blocks = (block(0, BASELINE, 1000.0), block(1, CANDIDATE, 1010.0), block(2, BASELINE, later_s, start=1))
    places = placed(blocks)
    assert [place.paused for place in places] == [False, False, True]
    assert places[2].begins_s == pytest.approx(21.5)
    assert places[2].restarted is None, "how long it took is not known"
    assert "pauses cut" in timeline_svg(blocks)


def test_blocks_of_each_load_are_measured_against_their_own_slowest():
    blocks = (
        block(0, BASELINE, 0.0, median_s=1.0, concurrency=1),
        block(1, CANDIDATE, 10.0, median_s=0.5, concurrency=1),
        block(2, BASELINE, 20.0, median_s=8.0, concurrency=16),
        block(3, CONTROL, 30.0, median_s=8.0, concurrency=16),
    )
    svg = timeline_svg(blocks)
    assert bars(svg, "bar-baseline")[0][2] == bars(svg, "bar-baseline")[1][2] == bars(svg, "bar-control")[0][2]
    assert "16 in flight" in svg


def test_one_block_or_none_is_no_timeline():
    assert timeline_svg(()) is None
    assert timeline_svg(TWO_STARTS[:1]) is None


def test_the_page_has_it_with_the_medians_in_the_table_of_blocks(adopted):
    page = render_html(adopted)
    assert "<h2>Timeline</h2>" in page
    assert "Median end to end" in page
    assert page.count('class="bar-baseline" rx="2"><title>baseline, block') == 14
    assert "<h2>Timeline</h2>" not in render_html(msgspec.structs.replace(adopted, blocks=()))
    parser = Balanced()
    parser.feed(page)
    assert not parser.open


def test_every_class_of_the_picture_has_a_colour(adopted):
    page = render_html(adopted)
    style = page[: page.index("</style>")]
    for kind in set(re.findall(r'class="((?:bar|line|dot|whisker|restart)[a-z-]*)"', str(timeline_svg(TWO_STARTS)))) | {
        "bar-unknown",
        "bar-control",
    }:
        assert f".{kind} {{" in style
