"""One timed run: sends items as the arrivals say, and returns what the client saw together with what the client cost."""

import asyncio
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import aiohttp
import msgspec

from netgain.errors import UsageError
from netgain.measuring.client.body import Prepared, prepare
from netgain.measuring.client.endpoint import base_url, is_netgain
from netgain.measuring.client.meter import ClientLoad, Meter
from netgain.measuring.client.options import Options
from netgain.measuring.client.record import ClientRecord, ErrorKind
from netgain.measuring.client.send import send, trace_connecting
from netgain.measuring.workload.arrivals import Arrivals, Closed, Constant, Poisson, Recorded, most_at_once
from netgain.measuring.workload.item import Item

_LEAD_S = 0.02  # between preparation and the first scheduled send
_SPARE_FILES = 16  # file descriptors for everything that is not a request
_IDLE_CONNECTION_S = 2.0  # shorter than servers keep idle connections, so that none is reused while it closes


class Progress(msgspec.Struct, frozen=True):
    """Counts of requests, after one more has ended."""

    done: int
    failed: int
    in_flight: int
    total: int
    last: ClientRecord


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run. `records` are in the order of the items; items that the deadline left unscheduled have none.

    `started_s`, `finished_s`: the window, from the first scheduled time to the last end, client's monotonic seconds.
    `void`: why the figures must not be used (the client was the bottleneck), or None. `netgain_server`: whether the
    server was asked for its own records.
    """

    records: tuple[ClientRecord, ...]
    arrivals: Arrivals
    started_s: float
    finished_s: float
    unscheduled: int
    client: ClientLoad
    void: str | None
    netgain_server: bool

    @property
    def window_s(self) -> float:
        return self.finished_s - self.started_s


async def run(
    url: str,
    model: str,
    items: Sequence[Item],
    arrivals: Arrivals,
    options: Options | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Send every item once and wait for all answers.

    Failures are records, not exceptions. Raises UsageError before anything is sent when the URL, the items or the
    process's file-descriptor limit cannot do; when cancelled, all requests are cancelled and their connections closed
    before CancelledError leaves here. Ends within `timeout_s` of the last send, or at the deadline.
    """
    options = options or Options()
    base = base_url(url)
    if not items:
        raise UsageError("there is nothing to run: the workload has no items")
    _check_files(most_at_once(arrivals, len(items), options.timeout_s))
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=_IDLE_CONNECTION_S)
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **options.headers}
    async with aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None),
        trace_configs=[trace_connecting()],
        read_bufsize=2**20,
    ) as session:
        to_netgain = await is_netgain(session, base) if options.server_record is None else options.server_record
        prepared = [prepare(item, model, options, to_netgain) for item in items]
        return await _Sender(session, base, prepared, arrivals, options, to_netgain, on_progress).run()


class _Sender:
    def __init__(
        self,
        session: aiohttp.ClientSession,
        base: str,
        prepared: Sequence[Prepared],
        arrivals: Arrivals,
        options: Options,
        to_netgain: bool,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._session = session
        self._base = base
        self._prepared = prepared
        self._arrivals = arrivals
        self._options = options
        self._to_netgain = to_netgain
        self._on_progress = on_progress
        self._records: dict[int, ClientRecord] = {}
        self._failed = 0
        self._meter = Meter()
        self._ends_s: float | None = None

    async def run(self) -> Run:
        start_s = time.monotonic() + _LEAD_S
        if self._options.deadline_s is not None:
            self._ends_s = start_s + self._options.deadline_s
        self._meter.start()
        try:
            async with asyncio.TaskGroup() as group:
                match self._arrivals:
                    case Closed(concurrency):
                        await self._sleep_until(start_s)
                        waiting = iter(range(len(self._prepared)))
                        for _ in range(min(concurrency, len(self._prepared))):
                            group.create_task(self._one_after_another(waiting))
                    case Poisson() | Constant() | Recorded():
                        for place, offset_s in enumerate(self._arrivals.offsets_s(len(self._prepared))):
                            due_s = start_s + offset_s
                            if self._ends_s is not None and due_s >= self._ends_s:
                                break
                            await self._sleep_until(due_s)
                            group.create_task(self._send(place, due_s))
        finally:
            client = await self._meter.stop([record.lateness_s for record in self._records.values()])
        records = tuple(self._records[place] for place in sorted(self._records))
        return Run(
            records=records,
            arrivals=self._arrivals,
            started_s=min((record.scheduled_s for record in records), default=start_s),
            finished_s=max((record.finished_s for record in records), default=start_s),
            unscheduled=len(self._prepared) - len(records),
            client=client,
            void=_own_failure(records) or client.over(self._options.budget),
            netgain_server=self._to_netgain,
        )

    async def _one_after_another(self, waiting: Iterator[int]) -> None:
        for place in waiting:
            if self._ends_s is not None and time.monotonic() >= self._ends_s:
                return
            await self._send(place, time.monotonic())

    async def _send(self, place: int, due_s: float) -> None:
        options = self._options
        self._meter.change(+1)
        try:
            record = await send(
                self._session,
                self._base,
                self._prepared[place],
                due_s,
                options.timeout_s,
                self._ends_s,
                options.retokenise,
            )
        finally:
            self._meter.change(-1)
        self._records[place] = record
        self._failed += not record.ok
        if self._on_progress is not None:
            total, done = len(self._prepared), len(self._records)
            self._on_progress(Progress(done, self._failed, self._meter.in_flight, total, record))

    async def _sleep_until(self, due_s: float) -> None:
        while (left_s := due_s - time.monotonic()) > 0.0:
            await asyncio.sleep(left_s)


def _own_failure(records: Sequence[ClientRecord]) -> str | None:
    own = [record for record in records if record.error_kind is ErrorKind.CLIENT]
    return f"{len(own)} of {len(records)} requests failed in the client itself: {own[0].error}" if own else None


def _check_files(most: int) -> None:
    """Raise UsageError when the process may not open a connection for each of `most` requests."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    open_now = sum(1 for _ in Path("/proc/self/fd").iterdir()) if Path("/proc/self/fd").is_dir() else 32
    need = most + open_now + _SPARE_FILES
    if need > limit:
        raise UsageError(
            f"up to {most} requests can be open at once, which needs {need} file descriptors; this process may open "
            f"{limit}: raise the limit (ulimit -n {2 ** math.ceil(math.log2(need))}), or lower the load or the timeout"
        )
