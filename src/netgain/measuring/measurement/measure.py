"""`netgain measure URL`: meets the server, says how long it will take, sends the load, and writes down what came out."""

import asyncio
import importlib.metadata
import math
import time
from pathlib import Path

import msgspec

from netgain.errors import NetgainError
from netgain.measuring.client.extent import Extent
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.client.run import Progress
from netgain.measuring.client.summary import format_seconds
from netgain.measuring.measurement.ask import Ask, arrivals_of, load_items
from netgain.measuring.measurement.caveats import caveats_of
from netgain.measuring.measurement.conduct import conduct, load_for, ramp
from netgain.measuring.measurement.cost import cost_of
from netgain.measuring.measurement.records import Row, rows_of, write_records
from netgain.measuring.measurement.result import (
    RECORDS_FILE,
    Measurement,
    Prompts,
    Source,
    write_measurement,
)
from netgain.measuring.measurement.search import saturate
from netgain.measuring.measurement.server import Met, changed, introduced, meet
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Workload
from netgain.plain_file import claimed
from netgain.wording import count


class NotWritten(NetgainError):
    """The load was sent, and its result could not be written as it should; `measurement` is all there is of it."""

    def __init__(self, message: str, measurement: Measurement) -> None:
        super().__init__(message)
        self.measurement = measurement


async def measure(ask: Ask, folder: Path, narrator: Narrator) -> Measurement:
    """Write `measurement.json` and `records.parquet` into `folder`. Raises UsageError and Unavailable before the load begins, and
    NotWritten after it."""
    began_s = time.monotonic()
    workload = load_items(ask)
    arrivals = arrivals_of(ask)
    narrator.phase("meeting the server", 3)
    met = await meet(ask, workload.items)
    narrator.found(_met(met))
    with claimed(folder):
        left_s = None if ask.budget_s is None else max(1.0, ask.budget_s - (time.monotonic() - began_s))
        if ask.saturate:
            assert not isinstance(arrivals, Closed)
            found, rows = await saturate(ask, met, workload.items, arrivals, left_s, narrator)
        else:
            found, rows = await _plain(ask, met, workload, left_s, narrator)
        measurement = msgspec.structs.replace(
            found, prompts=_prompts(workload, rows), restarts=await _restarts(found, met), records=RECORDS_FILE
        )
        measurement = msgspec.structs.replace(
            measurement,
            caveats=caveats_of(measurement, met, ask),
            cost=None if ask.pricing is None else cost_of(measurement, ask.pricing),
        )
        return _written(measurement, rows, folder, ask.with_text)


def _written(measurement: Measurement, rows: list[Row], folder: Path, with_text: bool) -> Measurement:
    """As much as there is room for: the figures also where the requests cannot be written."""
    failure: NetgainError | None = None
    try:
        write_records(rows, folder / RECORDS_FILE, with_text)
    except NetgainError as error:
        failure = error
        lost = f"The single requests could not be written and are lost: {error}."
        measurement = msgspec.structs.replace(measurement, records=None, caveats=(lost, *measurement.caveats))
    try:
        write_measurement(measurement, folder)
    except NetgainError as error:
        failure = error
    if failure is not None:
        raise NotWritten(f"the load was sent, but {failure}", measurement) from failure
    return measurement


async def _plain(
    ask: Ask, met: Met, workload: Workload, left_s: float | None, narrator: Narrator
) -> tuple[Measurement, list[Row]]:
    arrivals = arrivals_of(ask)
    warm_up = ramp(arrivals, met.unloaded_s, ask.warm_up_s)
    unloaded_s = met.unloaded_s
    limits = [seconds for seconds in (ask.duration_s, left_s) if seconds is not None]
    requests = ask.requests if ask.requests is not None or ask.duration_s is not None else len(workload.items)
    extent = Extent(warm_up=warm_up, requests=requests, send_for_s=min(limits, default=None))
    expected_s = min(limits, default=math.inf)
    if requests is not None:
        each_s = unloaded_s / arrivals.concurrency if isinstance(arrivals, Closed) else 1.0 / arrivals.rate_per_s
        expected_s = min(expected_s, (warm_up + requests) * each_s)
    load = load_for(ask, met, arrivals, extent)
    narrator.found(
        f"{load.text}: about {_duration(expected_s + unloaded_s)}, if requests take as long as the first ones"
    )
    steps = None if requests is None else warm_up + requests
    narrator.phase("measuring", steps)

    def progress(seen: Progress) -> None:
        failed = f"{seen.failed} failed, " if seen.failed else ""
        narrator.step(f"{failed}{seen.in_flight} in flight, e2e {format_seconds(seen.last.e2e_s)}")

    done = await conduct(met, workload.items, arrivals, extent, ask.slo, expected_s + unloaded_s, progress)
    measurement = Measurement(
        netgain=importlib.metadata.version("netgain"),
        source=Source(tool="netgain", version=importlib.metadata.version("netgain")),
        began_unix_s=done.began_unix_s,
        ended_unix_s=done.ended_unix_s,
        server=met.server,
        prompts=Prompts(name=workload.name),
        load=load,
        summary=done.summary,
        client=done.run.client,
        stopped="interrupted" if done.run.stopped else None,
        unfinished=len(done.run.unfinished_sent_s),
        server_side=done.server_side,
    )
    return measurement, rows_of(0, done.run.started_s, done.run.warm_up, done.run.records, workload.items)


async def _restarts(found: Measurement, met: Met) -> tuple[str, ...] | None:
    """What the server tells after the load, and what its metrics showed within the window."""
    after = None
    if found.stopped != "interrupted":  # whoever is in a hurry is not made to wait for an answer
        try:
            after = await changed(met)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
    window = None if found.server_side is None else found.server_side.window
    seen = () if window is None else window.restarts
    return after if after is None and not seen else tuple(dict.fromkeys((*seen, *(after or ()))))


def _prompts(workload: Workload, rows: list[Row]) -> Prompts:
    return Prompts(
        name=workload.name,
        digest=workload.digest,
        texts_digest=workload.texts_digest,
        items=len(workload.items),
        sent_each=1 + max((row.record.turn for row in rows), default=0),
        synthetic=workload.synthetic,
        notes=workload.notes,
    )


def _met(met: Met) -> str:
    first, later = met.probes[0], met.unloaded_s
    return (
        f"{introduced(met.server)}; a request alone takes {format_seconds(later)} "
        f"(the first one {format_seconds(first.finished_s - first.sent_s)}, {count(len(met.probes), 'probe')})"
    )


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "an unknown time"
    return f"{seconds:.0f} s" if seconds < 90.0 else f"{seconds / 60.0:.1f} min"
