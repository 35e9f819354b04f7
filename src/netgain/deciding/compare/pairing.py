"""Turns the requests of results into observations: paired by prompt where both sides sent the same, else side by side.

Requests of one result share its noise, so what is resampled is never the request: whole results where there are enough of
them, else sections of each result in the order of time.
"""

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from netgain.deciding.compare.loading import Loaded
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.resampling import FEWEST_OF_LAYER
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.measurement.records import Row

SECTIONS = 12  # of one result; fewer where there are few requests
_TIMES = ("scheduled_s", "sent_s", "finished_s", "first_token_s", "first_text_s")


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """`paired`: by prompt; `unmatched`: requests that were left out because the other side never sent their prompt."""

    observations: tuple[Observation, ...]
    paired: bool
    unmatched: int


def observe(baseline: Sequence[Loaded], candidate: Sequence[Loaded]) -> Paired:
    """The n-th results of both sides belong together where prompts are paired."""
    keys = {name: [_keys(one) for one in side] for name, side in ((BASELINE, baseline), (CANDIDATE, candidate))}
    if len(baseline) == len(candidate) and all(own is not None for side in keys.values() for own in side):
        shared = [
            set(before or ()) & set(after or ()) for before, after in zip(keys[BASELINE], keys[CANDIDATE], strict=True)
        ]
        if all(shared):
            return _by_prompt({BASELINE: baseline, CANDIDATE: candidate}, shared)
    return _apart({BASELINE: baseline, CANDIDATE: candidate})


def _keys(one: Loaded) -> list[str] | None:
    """The prompt and limit of each request; None where the result does not tell them."""
    found = [_key(row) for row in one.rows]
    return None if None in found else [key for key in found if key is not None]


def _key(row: Row) -> str | None:
    return None if row.prompt_sha256 is None else f"{row.prompt_sha256}/{row.max_tokens}"


def _by_prompt(sides: Mapping[str, Sequence[Loaded]], shared: Sequence[set[str]]) -> Paired:
    observations: list[Observation] = []
    unmatched = 0
    block = itertools.count()
    for run, common in enumerate(shared):
        named: dict[str, str] = {}  # in the baseline's order; the other side may call the same prompt otherwise
        for row in sides[BASELINE][run].rows:
            if (key := _key(row)) is not None and key in common:
                named.setdefault(key, row.record.item_id)
        section = {key: place * _sections(len(named)) // len(named) for place, key in enumerate(named)}
        for name, side in sides.items():
            blocks: dict[int, int] = {}
            for row in side[run].rows:
                key = _key(row)
                if key is None or key not in common:
                    unmatched += 1
                    continue
                group = run * SECTIONS + section[key]
                if group not in blocks:
                    blocks[group] = next(block)
                record = msgspec.structs.replace(_at(row.record, side[run]), item_id=named[key])
                observations.append(Observation(arm=name, start=run, group=group, block=blocks[group], record=record))
    return Paired(observations=tuple(observations), paired=True, unmatched=unmatched)


def _apart(sides: Mapping[str, Sequence[Loaded]]) -> Paired:
    observations: list[Observation] = []
    group = itertools.count()
    for place, (name, side) in enumerate(sides.items()):
        for one in side:
            sections = 1 if len(side) >= FEWEST_OF_LAYER else _sections(len(one.rows))
            numbers = [next(group) for _ in range(sections)]
            for at, row in enumerate(sorted(one.rows, key=lambda row: row.record.scheduled_s)):
                number = numbers[at * sections // len(one.rows)]
                observations.append(
                    Observation(arm=name, start=place, group=number, block=number, record=_at(row.record, one))
                )
    return Paired(observations=tuple(observations), paired=False, unmatched=0)


def _sections(requests: int) -> int:
    """At least two requests in each, as far as there are so many."""
    return max(1, min(SECTIONS, requests // 2))


def _at(record: ClientRecord, one: Loaded) -> ClientRecord:
    """The record with its times in Unix seconds, so that those of several results are in order."""
    by = one.measurement.began_unix_s or 0.0
    moved = {name: None if (at := getattr(record, name)) is None else at + by for name in _TIMES}
    return msgspec.structs.replace(record, chunk_times_s=tuple(at + by for at in record.chunk_times_s), **moved)
