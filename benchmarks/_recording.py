"""Timings of equal servers on disk: small enough to keep beside the code, complete enough to judge experiments made of them."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.measuring.client.record import ClientRecord

ARMS = (BASELINE, CANDIDATE)
NO_TOKENS = -1
TICK_S = 1e-5


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds of observations: in each, two servers of one configuration answered the same groups of prompts in mirrored
    blocks. The arms' names say only which of the two it was. `context` is machine and date."""

    rounds: tuple[tuple[Observation, ...], ...]
    context: dict[str, Any]

    def size(self, place: int) -> tuple[int, int]:
        """Groups and blocks of a round."""
        seen = self.rounds[place]
        return len({one.group for one in seen}), len({one.block for one in seen})


def save(path: Path, rounds: Sequence[Trial], context: Mapping[str, object]) -> None:
    """Write the requests' times in units of TICK_S, without texts. Raises ValueError if a request failed."""
    rows: list[tuple[int, ...]] = []
    waits: list[int] = []
    tokens: list[int] = []
    items: dict[str, int] = {}
    for number, trial in enumerate(rounds):
        origin = min(seen.record.scheduled_s for seen in trial.observations)
        for seen in trial.observations:
            record = seen.record
            if not record.ok or record.first_token_s is None:
                raise ValueError(f"request {record.item_id} of round {number} failed: {record.error}")
            item = items.setdefault(record.item_id, len(items))
            rows.append(
                (
                    number,
                    ARMS.index(seen.arm),
                    seen.group,
                    seen.block,
                    item,
                    NO_TOKENS if record.output_tokens is None else record.output_tokens,
                    _ticks(record.scheduled_s - origin),
                    _ticks(record.sent_s - record.scheduled_s),
                    _ticks(record.finished_s - record.chunk_times_s[-1]),
                    len(record.chunk_times_s),
                )
            )
            times = itertools.pairwise((record.scheduled_s, *record.chunk_times_s))
            waits += [_ticks(later - earlier) for earlier, later in times]
            tokens += record.chunk_tokens
    foreign = []
    for trial in rounds:
        seen_cores = [block.foreign_cpu for block in trial.blocks if block.foreign_cpu is not None]
        foreign.append(round(sum(seen_cores) / len(seen_cores), 2) if seen_cores else None)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        requests=np.array(rows, dtype=np.int32),
        waits=np.array(waits, dtype=np.int32),
        tokens=np.array(tokens, dtype=np.int16),
        context=np.array(json.dumps({**context, "foreign_cpu_cores": foreign, "items": list(items)}, default=str)),
    )


def join(path: Path, parts: Sequence[Path]) -> None:
    """Write the rounds of several recordings as one, with the contexts of all. Raises ValueError if their designs differ."""
    requests: list[NDArray[np.int32]] = []
    waits, tokens, contexts = [], [], []
    items: dict[str, int] = {}
    rounds, shapes = 0, set()
    for part in parts:
        with np.load(part) as file:
            rows, context = file["requests"].copy(), json.loads(str(file["context"]))
            waits.append(file["waits"])
            tokens.append(file["tokens"])
        numbers = [items.setdefault(item, len(items)) for item in context.pop("items")]
        shapes |= {tuple(len(np.unique(own[:, at])) for at in (2, 3)) for own in _by_round(rows)}
        rows[:, 4] = np.array(numbers, dtype=np.int32)[rows[:, 4]]
        rows[:, 0] += rounds
        rounds = int(rows[-1, 0]) + 1
        requests.append(rows)
        contexts += context.pop("parts", [context])
    if len(shapes) > 1:
        raise ValueError(
            f"rounds of {len(shapes)} designs, (groups, blocks) {sorted(shapes)}, make no single recording"
        )
    np.savez_compressed(
        path,
        requests=np.concatenate(requests),
        waits=np.concatenate(waits),
        tokens=np.concatenate(tokens),
        context=np.array(json.dumps({"parts": contexts, "items": list(items)})),
    )


def _by_round(rows: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    return [rows[rows[:, 0] == number] for number in np.unique(rows[:, 0])]


def load(path: Path) -> Recording:
    """Read what `save` wrote."""
    with np.load(path) as file:
        requests, waits, carried = file["requests"], file["waits"], file["tokens"].tolist()
        context = json.loads(str(file["context"]))
    items = context.pop("items")
    rounds: list[list[Observation]] = [[] for _ in range(int(requests[:, 0].max()) + 1)]
    at = 0
    for number, arm, group, block, item, tokens, scheduled, late, after, chunks in requests.tolist():
        scheduled_s = scheduled * TICK_S
        times = tuple((scheduled_s + np.cumsum(waits[at : at + chunks]) * TICK_S).tolist())
        record = ClientRecord(
            item_id=items[item],
            category="recorded",
            scheduled_s=scheduled_s,
            sent_s=scheduled_s + late * TICK_S,
            first_token_s=times[0],
            chunk_times_s=times,
            chunk_tokens=tuple(carried[at : at + chunks]),
            finished_s=times[-1] + after * TICK_S,
            output_tokens=None if tokens == NO_TOKENS else tokens,
            text="not kept",
        )
        at += chunks
        rounds[number].append(Observation(arm=ARMS[arm], group=group, block=block, record=record))
    return Recording(rounds=tuple(tuple(part) for part in rounds), context=context)


def _ticks(seconds: float) -> int:
    return round(seconds / TICK_S)
