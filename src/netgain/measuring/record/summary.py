"""A recording in a few figures: rate, concurrency, lengths, and how much of the prompts a prefix cache could have reused."""

import math
from collections.abc import Iterable

import msgspec

from netgain.cost.reuse import reuse_curve
from netgain.measuring.record.entry import Closing, Entry, Line, Recording, Unit
from netgain.measuring.record.journal import Unreadable

CAPACITIES = (64, 256, 1024, 4096, 16384, 65536)  # blocks


class Reuse(msgspec.Struct, frozen=True):
    """Share of the prompts' blocks that an LRU prefix cache of `blocks` blocks holds when they come; None: no limit."""

    blocks: int | None
    hit_rate: float


class Spread(msgspec.Struct, frozen=True):
    """Of the requests whose value is known."""

    known: int
    p50: float
    p95: float
    most: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """None where nothing of that kind is known. `uncounted_streams` passed the proxy, but the server gave no counts."""

    with_text: bool
    requests: int
    failed: int
    uncounted_streams: int
    lost: int
    unreadable: int
    window_s: float | None
    rate_per_s: float | None
    mean_in_flight: float | None
    most_in_flight: int | None
    prompt_tokens: Spread | None
    output_tokens: Spread | None
    prompt_size: Spread | None
    first_token_s: Spread | None
    ended_s: Spread | None
    copied: Spread | None
    block_unit: Unit | None
    block_size: int | None
    reuse: tuple[Reuse, ...]


def summarise(lines: Iterable[Line | Unreadable]) -> Summary:
    """One pass over a recording, whose blocks are compared within each of its sessions of recording only."""
    entries: list[Entry] = []
    blocks: list[list[tuple[str, int]]] = []
    recording: Recording | None = None
    lost = unreadable = uncounted = 0
    for line in lines:
        match line:
            case Recording():
                recording = line
            case Closing():
                lost += line.lost
            case Unreadable():
                unreadable += 1
            case Entry():
                name = "" if recording is None else recording.recording
                if line.blocks:
                    blocks.append([(name, block) for block in line.blocks])
                if recording is not None and recording.source == "proxy" and _uncounted_stream(line):
                    uncounted += 1
                entries.append(msgspec.structs.replace(line, blocks=None, request=None, answer=None))
    spans = sorted(
        (entry.arrived_unix_s, entry.arrived_unix_s + (entry.ended_after_s or 0.0))
        for entry in entries
        if entry.arrived_unix_s is not None
    )
    window_s = max(end for _, end in spans) - spans[0][0] if len(spans) > 1 else None
    ended = [end - start for start, end in spans]
    timed = all(entry.ended_after_s is not None for entry in entries)
    return Summary(
        with_text=recording is not None and recording.with_text,
        requests=len(entries),
        failed=sum(_failed(entry) for entry in entries),
        uncounted_streams=uncounted,
        lost=lost,
        unreadable=unreadable,
        window_s=window_s,
        rate_per_s=len(spans) / window_s if window_s else None,
        mean_in_flight=sum(ended) / window_s if window_s and timed else None,
        most_in_flight=_most_open(spans) if spans and timed else None,
        prompt_tokens=_spread(entry.prompt_tokens for entry in entries),
        output_tokens=_spread(entry.output_tokens for entry in entries),
        prompt_size=_spread(entry.prompt_size for entry in entries),
        first_token_s=_spread(entry.first_token_after_s for entry in entries),
        ended_s=_spread(entry.ended_after_s for entry in entries if not _failed(entry)),
        copied=_spread(entry.copied for entry in entries),
        block_unit=None if recording is None else recording.block_unit,
        block_size=None if recording is None else recording.block_size,
        reuse=reuse(blocks),
    )


def reuse(requests: list[list[tuple[str, int]]]) -> tuple[Reuse, ...]:
    """The hit-rate curve over cache sizes, up to the one that holds everything. Hits count from a prompt's beginning."""
    curve = reuse_curve(requests)
    if not curve.asked:
        return ()
    sizes: list[int | None] = [size for size in CAPACITIES if size < curve.distinct]
    return tuple(Reuse(size, curve.at(size).hit_rate) for size in (*sizes, None))


def _failed(entry: Entry) -> bool:
    return entry.error is not None or (entry.status or 200) >= 400


def _uncounted_stream(entry: Entry) -> bool:
    return bool(entry.asked.stream) and not _failed(entry) and entry.output_tokens is None


def _most_open(spans: list[tuple[float, float]]) -> int:
    edges = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


def _spread(values: Iterable[float | int | None]) -> Spread | None:
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return Spread(len(known), _rank(known, 0.5), _rank(known, 0.95), known[-1])


def _rank(known: list[float | int], share: float) -> float:
    """Nearest rank."""
    return known[max(0, math.ceil(share * len(known)) - 1)]
