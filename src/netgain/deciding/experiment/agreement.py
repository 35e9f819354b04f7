"""Do a server's own counters tell the same as the answers that came from it? Two accounts of the same blocks, side by side."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from netgain.deciding.experiment.verdict import Check
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.names import Engine, Figure
from netgain.wording import count

LIMIT = 0.1  # of the output tokens: more means that the server worked for others, too
CUT = "an answer may end inside a step, whose further drafts the server counts and nobody receives"
STEP_IS_A_CHUNK: tuple[Engine, ...] = ("vllm", "sglang")  # they stream what a step committed as one chunk


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one arm over the blocks of an experiment. `name`: what the server calls it. None: not told by the server, or
    not by its answers. `room`: by how much the two may differ because they do not count quite the same (`why`). `agree` None
    where either is unknown."""

    arm: str
    figure: str
    unit: str
    name: str | None
    server: float | None
    client: float | None
    room: float = 0.0
    why: str | None = None
    agree: bool | None


def compare_counts(
    arm: str, engine: Engine | None, figures: Mapping[str, Figure], records: Sequence[ClientRecord]
) -> tuple[Counted, ...]:
    """Each figure that server and client can both know. `figures`: what the server's counters gained while it answered
    `records` and nothing else. Where a request failed the client does not know what the server did for it."""
    whole = bool(records) and all(record.ok for record in records)
    rows = []
    for figure, ours in _CLIENT.items():
        told = figures.get(figure)
        if told is None or told.name is None or (figure == "prefilled_tokens" and "prompt_tokens" in figures):
            continue
        rows.append(_row(arm, figure, told, ours(records) if whole else None))
    return (*rows, *_drafts(arm, engine, figures, records if whole else ()))


def check_counts(counted: Iterable[Counted]) -> Check:
    """Void only where a server put out far more than was received; other differences are said."""
    rows = tuple(counted)
    outputs = [row for row in rows if row.figure == "output_tokens"]
    shares = [row.server / row.client - 1.0 for row in outputs if row.server is not None and row.client]
    apart = [row for row in rows if row.agree is False]
    known = [row for row in rows if row.agree is not None]
    worst = max(shares, default=None)
    if apart:
        told = "; ".join(
            f"{row.arm} counted {row.server:,.0f} {_words(row)}, the client {row.client:,.0f}" for row in apart
        )
    elif known:
        names = ", ".join(dict.fromkeys(_words(row) for row in known))
        told = f"server and client agree in {count(len(known), 'figure')} ({names})"
    else:
        told = "the servers' counters tell nothing that could be compared"
    return Check(
        name="counters",
        ok=False if worst is not None and worst > LIMIT else None if apart or not known else True,
        value=worst,
        limit=LIMIT,
        says=told,
    )


def _words(row: Counted) -> str:
    return row.figure.replace("_", " ")


def _drafts(
    arm: str, engine: Engine | None, figures: Mapping[str, Figure], records: Sequence[ClientRecord]
) -> Iterable[Counted]:
    """What other engines than netgain, whose answers tell of their drafts, count of them."""
    if engine == "netgain":
        return
    for figure in ("accepted_tokens", "drafted_tokens", "draft_steps"):
        told = figures.get(figure)
        if told is None or not told.gained:
            continue
        if figure == "accepted_tokens" and engine in STEP_IS_A_CHUNK:
            room = len(records) * (1.0 + (_mean_draft(figures) or 0.0))
            yield _row(arm, figure, told, _beyond_chunks(records) if records else None, room, CUT)
        else:
            yield _row(arm, figure, told, None)


def _row(arm: str, figure: str, told: Figure, ours: float | None, room: float = 0.0, why: str | None = None) -> Counted:
    agree = None if told.gained is None or ours is None else abs(told.gained - ours) <= room
    return Counted(
        arm=arm,
        figure=figure,
        unit=told.unit,
        name=told.name,
        server=told.gained,
        client=ours,
        room=room,
        why=why,
        agree=agree,
    )


def _sum(values: Iterable[int | None]) -> float | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return float(total)


def _computed(records: Sequence[ClientRecord]) -> float | None:
    prompt, cached = _sum(record.prompt_tokens for record in records), _sum(record.cached_tokens for record in records)
    return None if prompt is None or cached is None else prompt - cached


_CLIENT: Mapping[str, Callable[[Sequence[ClientRecord]], float | None]] = {
    "requests": lambda records: float(len(records)),
    "prompt_tokens": lambda records: _sum(record.prompt_tokens for record in records),
    "prefilled_tokens": _computed,
    "cached_tokens": lambda records: _sum(record.cached_tokens for record in records),
    "output_tokens": lambda records: _sum(record.output_tokens for record in records),
}


def _beyond_chunks(records: Sequence[ClientRecord]) -> float | None:
    """Tokens that came in a chunk with others: each step commits one token, and accepted drafts with it."""
    if any(record.tokens_source != "usage" for record in records):
        return None
    return _sum(
        None if record.output_tokens is None else record.output_tokens - len(record.chunk_times_s) for record in records
    )


def _mean_draft(figures: Mapping[str, Figure]) -> float | None:
    drafted, steps = (figures[name].gained if name in figures else None for name in ("drafted_tokens", "draft_steps"))
    return drafted / steps if drafted is not None and steps else None
