"""All blocks of an experiment in time, a row for each arm, as high as they were slow: drift, slow spells and bad starts show."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL
from netgain.deciding.report.figures import nice_ticks, seconds
from netgain.deciding.report.svg import WIDTH, figure, line, rect, text
from netgain.wording import count

LEFT, RIGHT, TOP, ROW, GAP, BOTTOM = 92.0, 12.0, 24.0, 62.0, 14.0, 40.0
PAUSE = 0.05  # of all blocks' time: as wide is drawn what lay between blocks for longer than all of them took
MOST_LABELS = 12


class Placed(NamedTuple):
    """A block at its place on the picture's clock: seconds since the first block began, pauses cut. `paused`: one was cut
    before it; `restarted`: how long the servers took to be started again before it (None: they went on)."""

    block: Block
    begins_s: float
    ends_s: float
    paused: bool
    restarted: float | None


def placed(blocks: Sequence[Block]) -> list[Placed]:
    """In their order. A run that went on later, perhaps under another clock, is drawn as if it had paused shortly."""
    whole = sum(block.seconds for block in blocks)
    found: list[Placed] = []
    at = 0.0
    before: Block | None = None
    for block in blocks:
        gap = 0.0 if before is None else block.started_s - before.finished_s
        paused = gap < 0.0 or gap > whole
        at += PAUSE * whole if paused else gap
        again = before is not None and block.start != before.start
        found.append(Placed(block, at, at + block.seconds, paused, gap if again and not paused else None))
        at, before = at + block.seconds, block
    return found


def timeline_svg(blocks: Sequence[Block]) -> Markup | None:
    """None of fewer than two blocks. Blocks of different loads are each measured against the slowest of their own load."""
    rows = [arm for arm in (BASELINE, CANDIDATE, CONTROL) if any(block.arm == arm for block in blocks)]
    places = [place for place in placed(blocks) if place.block.arm in rows]
    if len(places) < 2 or places[-1].ends_s <= 0.0:
        return None
    tops = _slowest(blocks)
    scale = (WIDTH - LEFT - RIGHT) / places[-1].ends_s
    bottom = TOP + len(rows) * (ROW + GAP) - GAP
    parts = _between(places, scale, bottom)
    for row, arm in enumerate(rows):
        floor = TOP + row * (ROW + GAP) + ROW
        own = [place for place in places if place.block.arm == arm]
        parts.append(text(LEFT - 10, floor - ROW / 2 + 4, arm, anchor="end"))
        parts += [
            line(LEFT, floor, WIDTH - RIGHT, floor, "axis"),
            line(LEFT, floor - ROW, WIDTH - RIGHT, floor - ROW, "grid"),
        ]
        if len(tops) == 1:
            parts.append(text(LEFT - 10, floor - ROW + 5, seconds(next(iter(tops.values()))), "tick", "end"))
        for place in own:
            high = _height(place.block, tops)
            kind = "bar-unknown" if high is None else f"bar-{arm}"
            tall = ROW * (1.0 if high is None else high)
            width = max(0.8, (place.ends_s - place.begins_s) * scale)
            parts.append(rect(LEFT + place.begins_s * scale, floor - tall, width, tall, kind, _tip(place)))
        known = [high for place in own if (high := _height(place.block, tops)) is not None]
        if known:
            middle = floor - ROW * statistics.median(known)
            parts.append(line(LEFT, middle, WIDTH - RIGHT, middle, "joint"))
    for tick in nice_ticks(0.0, places[-1].ends_s, 8):
        x = LEFT + tick * scale
        parts += [line(x, bottom, x, bottom + 5, "axis"), text(x, bottom + 18, f"{tick:g}", "tick", "middle")]
    cut = ", pauses cut" if any(place.paused for place in places) else ""
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, bottom + 34, f"seconds since the first block{cut}", "tick", "middle"))
    return figure(bottom + BOTTOM, "All blocks in time, by arm", parts, told=_told(places, rows))


def _between(places: Sequence[Placed], scale: float, bottom: float) -> list[str]:
    """Starts of the servers, with their numbers where there is room, and pauses."""
    parts: list[str] = []
    starts = list(dict.fromkeys(place.block.start for place in places))
    named: set[int] = set()
    for earlier, place in zip((None, *places), places, strict=False):
        x = LEFT + place.begins_s * scale
        if place.restarted is not None and earlier is not None:
            began = LEFT + earlier.ends_s * scale
            tip = f"servers started again: {seconds(place.restarted)}"
            parts.append(rect(began, TOP - 4, max(1.0, x - began), bottom - TOP + 4, "restart", tip))
        if place.paused:
            parts.append(line(x, TOP - 4, x, bottom, "even"))
        if place.block.start not in named and 1 < len(starts) <= MOST_LABELS:
            parts.append(text(x, TOP - 9, f"start {starts.index(place.block.start) + 1}", "tick"))
        named.add(place.block.start)
    return parts


def _slowest(blocks: Sequence[Block]) -> dict[int | None, float]:
    found: dict[int | None, float] = defaultdict(float)
    for block in blocks:
        if block.e2e_median_s is not None:
            found[block.concurrency] = max(found[block.concurrency], block.e2e_median_s)
    return dict(found)


def _height(block: Block, tops: Mapping[int | None, float]) -> float | None:
    top = tops.get(block.concurrency)
    return None if block.e2e_median_s is None or not top else block.e2e_median_s / top


def _tip(place: Placed) -> str:
    block = place.block
    load = "" if block.concurrency is None else f", {block.concurrency} in flight"
    return (
        f"{block.arm}, block {block.index}, group {block.group}{load}: median {seconds(block.e2e_median_s)}, "
        f"at {place.begins_s:.1f} s for {block.seconds:.1f} s"
    )


def _told(places: Sequence[Placed], rows: Sequence[str]) -> str:
    """In words what the picture shows."""
    starts = len({place.block.start for place in places})
    said = [f"{count(len(places), 'block')} over {places[-1].ends_s:.0f} s in {count(starts, 'start')} of the servers."]
    for arm in rows:
        known = [
            (place.block.e2e_median_s, place.begins_s)
            for place in places
            if place.block.arm == arm and place.block.e2e_median_s is not None
        ]
        if not known:
            said.append(f"{arm}: medians unknown.")
            continue
        times = [value for value, _ in known]
        slowest, at_s = max(known)
        said.append(
            f"{arm}: medians of blocks from {seconds(min(times))} to {seconds(slowest)}, the slowest at {at_s:.0f} s."
        )
    return " ".join(said)
