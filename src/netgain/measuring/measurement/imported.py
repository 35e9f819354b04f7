"""What an importer of another tool's result hands over, and the steps that several of them share."""

from collections.abc import Sequence

import msgspec

from netgain.measuring.client.record import ClientRecord
from netgain.measuring.client.summary import Summary
from netgain.measuring.measurement.result import Load, Prompts, Server, Source


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """A run of another tool, as netgain.measuring.client.summary.Sample."""

    records: tuple[ClientRecord, ...]
    warm_up: tuple[ClientRecord, ...] = ()
    started_s: float
    finished_s: float
    steady_until_s: float
    changes: tuple[tuple[float, int], ...]
    unfinished_sent_s: tuple[float, ...] = ()
    unscheduled: int = 0
    void: str | None = None


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """Either `records`, or only the figures of a `summary` where the tool kept no requests. `unix_s`: what must be added to the
    records' times to have Unix time (None: unknown). `caveats`: how its figures differ from netgain's.
    """

    source: Source
    server: Server
    load: Load
    prompts: Prompts
    records: tuple[ClientRecord, ...] = ()
    unix_s: float | None = None
    summary: Summary | None = None
    caveats: tuple[str, ...] = ()


def past_run(records: Sequence[ClientRecord]) -> Past:
    """The records in order of their schedule, with the load that they show."""
    ordered = tuple(sorted(records, key=lambda record: record.scheduled_s))
    edges = sorted([(record.sent_s, 1) for record in ordered] + [(record.finished_s, -1) for record in ordered])
    changes, now = [], 0
    for at_s, by in edges:
        now += by
        changes.append((at_s, now))
    started_s = ordered[0].scheduled_s
    finished_s = max(record.finished_s for record in ordered)
    last_s = max(record.scheduled_s for record in ordered)
    return Past(
        records=ordered,
        started_s=started_s,
        finished_s=finished_s,
        # the load lasted until the last request was sent, and one mean gap on
        steady_until_s=min(finished_s, last_s + (last_s - started_s) / max(1, len(ordered) - 1)),
        changes=tuple(changes),
    )


def spread_tokens(chunks: int, total: int | None) -> tuple[int, ...]:
    """Tokens of `chunks` chunks where only their sum is known: one for the first, the rest evenly, as in docs/measuring.md."""
    if chunks == 0:
        return ()
    if total is None or total < 1:
        return (1,) * chunks
    if chunks == 1:
        return (total,)
    later, extra = divmod(max(0, total - 1), chunks - 1)
    return (1, *(later + (place < extra) for place in range(chunks - 1)))
