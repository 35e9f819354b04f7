"""One timed run: sends items as the arrivals say, and returns what the client saw together with what the client cost."""

import asyncio
import math
import resource
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import aiohttp
import msgspec

from netgain.errors import UsageError
from netgain.measuring.client.body import Prepared, prepare
from netgain.measuring.client.connection import Connections
from netgain.measuring.client.endpoint import base_url, joins_chunks, models_or_none, signed_by_netgain
from netgain.measuring.client.extent import Extent
from netgain.measuring.client.meter import ClientLoad, Meter
from netgain.measuring.client.options import Options
from netgain.measuring.client.quiet import quiet
from netgain.measuring.client.record import ClientRecord, ErrorKind
from netgain.measuring.client.send import send
from netgain.measuring.workload.arrivals import Arrivals, Closed, most_at_once
from netgain.measuring.workload.item import Item

_LEAD_S = 0.02  # between preparation and the first scheduled send
_SPARE_FILES = 16  # file descriptors for everything that is not a request
_TIMER_S = 0.001  # epoll's timers: a sleep ends up to so much late
_SPIN_BELOW_PER_S = 50.0  # requests per second up to which that is made good by waiting awake: 2.5 % of a core at most
_IDLE_CONNECTION_S = 2.0  # shorter than most servers keep idle connections, so that few are reused while they close


MOST_REQUESTS = 5_000_000  # of a schedule, which is drawn before it begins
_RETRY_S = (
    0.5  # a place of a closed loop waits so long when nobody listens: users do not knock a thousand times a second
)


class Progress(msgspec.Struct, frozen=True):
    """Counts of requests, after one more has ended. `total` is None when only time limits them."""

    done: int
    failed: int
    in_flight: int
    total: int | None
    last: ClientRecord
    counted: bool  # whether `last` counts, or was for warming up


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run. `records` are those that count, in the order of their sending; what the deadline left unscheduled has none.

    `warm_up` are the records before them. `started_s`, `finished_s`: from the first counted scheduled time to the last end,
    client's monotonic seconds. `steady_until_s`: until when the load lasted (no more requests were due, or fewer were in
    flight than asked). `changes`: (when, requests in flight from then on). `void`: why the figures must not be used (the client
    was the bottleneck), or None. `stopped`: it was ended early, and requests in flight then have no record, only the times at
    which they were sent (`unfinished_sent_s`).
    `netgain_server`: whether the server was asked for its own records.
    """

    records: tuple[ClientRecord, ...]
    warm_up: tuple[ClientRecord, ...] = ()
    arrivals: Arrivals
    started_s: float
    finished_s: float
    steady_until_s: float
    changes: tuple[tuple[float, int], ...] = ()
    unscheduled: int
    client: ClientLoad
    void: str | None
    stopped: bool = False
    unfinished_sent_s: tuple[float, ...] = ()
    netgain_server: bool

    @property
    def window_s(self) -> float:
        return self.finished_s - self.started_s


class Stop(Exception):
    """Raised by `on_progress` to end a run early: what is in flight is cancelled, and has no record."""


async def run(
    url: str,
    model: str,
    items: Sequence[Item],
    arrivals: Arrivals,
    options: Options | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    extent: Extent | None = None,
    on_counting: Callable[[], None] | None = None,
) -> Run:
    """Send what `extent` says (without it every item once) and wait for all answers.

    `on_counting` is called just before the first request that counts. Failures are records, not exceptions. Raises UsageError
    before anything is sent when the URL, the items or the process's file-descriptor limit cannot do; when cancelled, all
    requests are cancelled and their connections closed before CancelledError leaves here. Ends within `timeout_s` of the last
    send, or at the deadline.
    """
    options, extent = options or Options(), extent or Extent()
    base = base_url(url)
    if not items:
        raise UsageError("there is nothing to run: the workload has no items")
    _check_plan(arrivals, extent)
    count = _due(arrivals, extent, len(items))
    _check_files(most_at_once(arrivals, count, options.timeout_s))
    to_netgain = options.server_record
    joins = False
    if to_netgain is None or (to_netgain and any(item.chunks for item in items)):
        async with aiohttp.ClientSession(headers=options.headers) as session:
            cards = await models_or_none(session, base)
        to_netgain = signed_by_netgain(cards) if to_netgain is None else to_netgain
        joins = to_netgain and joins_chunks(cards)
    idle_s = _IDLE_CONNECTION_S if options.reuse_connections else 0.0
    async with Connections(base, options.headers, idle_s) as connections:
        prepared = [prepare(item, model, options, to_netgain, joins) for item in items]
        sender = _Sender(connections, prepared, arrivals, options, extent, count, to_netgain)
        sender.on_progress, sender.on_counting = on_progress, on_counting
        with quiet():
            return await sender.run()


_ENDLESS = 2**62


def _due(arrivals: Arrivals, extent: Extent, items: int) -> int:
    """How many requests may be sent at most."""
    most = extent.most(items)
    if extent.send_for_s is None or isinstance(arrivals, Closed):
        return _ENDLESS if most is None else most
    # a longer schedule begins like a shorter one, so it can be drawn until it is long enough
    count = extent.warm_up + 64
    while True:
        offsets = arrivals.offsets_s(count)
        limit_s = offsets[extent.warm_up] + extent.send_for_s
        if offsets[-1] > limit_s or (most is not None and count >= most):
            within = bisect_right(offsets, limit_s)
            return within if most is None else min(most, within)
        count *= 2


class _Sender:
    on_progress: Callable[[Progress], None] | None = None
    on_counting: Callable[[], None] | None = None

    def __init__(
        self,
        connections: Connections,
        prepared: Sequence[Prepared],
        arrivals: Arrivals,
        options: Options,
        extent: Extent,
        count: int,
        to_netgain: bool,
    ) -> None:
        self._connections = connections
        self._prepared = prepared
        self._arrivals = arrivals
        self._options = options
        self._extent = extent
        self._count = count
        self._to_netgain = to_netgain
        self._records: dict[int, ClientRecord] = {}
        self._failed = 0
        self._open: dict[int, float] = {}  # when what is in flight was sent
        self._meter = Meter()
        self._ends_s: float | None = None
        self._stops_sending_s = math.inf
        self._began_s: float | None = None
        self._steady_until_s = math.inf

    async def run(self) -> Run:
        start_s = time.monotonic() + _LEAD_S
        if self._options.deadline_s is not None:
            self._ends_s = start_s + self._options.deadline_s
        self._meter.start()
        try:
            stopped = await self._send_all(start_s)
        finally:
            client = await self._meter.stop([record.lateness_s for record in self._records.values()])
        warm_up = self._extent.warm_up
        counted = tuple(self._records[place] for place in sorted(self._records) if place >= warm_up)
        began_s = start_s if self._began_s is None else self._began_s
        finished_s = max((record.finished_s for record in counted), default=began_s)
        if stopped:
            finished_s = max(finished_s, time.monotonic())
        return Run(
            records=counted,
            warm_up=tuple(self._records[place] for place in sorted(self._records) if place < warm_up),
            arrivals=self._arrivals,
            started_s=began_s,
            finished_s=finished_s,
            steady_until_s=max(began_s, min(self._steady_until_s, finished_s)),
            changes=self._meter.changes,
            unscheduled=0 if self._count == _ENDLESS or stopped else self._count - len(self._records),
            client=client,
            void=_own_failure(counted) or client.over(self._options.budget),
            stopped=stopped,
            unfinished_sent_s=tuple(self._open.values()),
            netgain_server=self._to_netgain,
        )

    async def _send_all(self, start_s: float) -> bool:
        """Returns whether it was ended early."""
        stopped = False
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    match self._arrivals:
                        case Closed(concurrency):
                            await self._sleep_until(start_s)
                            waiting = iter(range(self._count))
                            for _ in range(min(concurrency, self._count)):
                                group.create_task(self._one_after_another(waiting))
                        case open_loop:
                            await self._on_schedule(group, open_loop.offsets_s(self._count), start_s)
            except* Stop:
                stopped = True
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not self._options.keep_interrupted:
                raise
            task.uncancel()
            stopped = True
        return stopped

    async def _on_schedule(self, group: asyncio.TaskGroup, offsets_s: Sequence[float], start_s: float) -> None:
        awake = len(offsets_s) <= _SPIN_BELOW_PER_S * offsets_s[-1]
        for place, offset_s in enumerate(offsets_s):
            due_s = start_s + offset_s
            if self._ends_s is not None and due_s >= self._ends_s:
                break
            await self._sleep_until(due_s, awake)
            self._begin_counting(place, due_s)
            group.create_task(self._send(place, due_s))
        first_s = start_s + offsets_s[min(self._extent.warm_up, len(offsets_s) - 1)]
        last_s = start_s + offsets_s[-1]
        gap_s = offsets_s[-1] / len(offsets_s)
        lasts_s = self._extent.send_for_s
        self._steady_until_s = last_s + gap_s if lasts_s is None else min(last_s + gap_s, first_s + lasts_s)

    async def _one_after_another(self, waiting: Iterator[int]) -> None:
        for place in waiting:
            due_s = time.monotonic()
            if due_s >= self._stops_sending_s or (self._ends_s is not None and due_s >= self._ends_s):
                break
            self._begin_counting(place, due_s)
            record = await self._send(place, due_s)
            if record.error_kind is ErrorKind.CONNECT and place + 1 < self._count:
                await asyncio.sleep(_RETRY_S)
        self._steady_until_s = min(self._steady_until_s, time.monotonic())

    def _begin_counting(self, place: int, due_s: float) -> None:
        if place == self._extent.warm_up:
            self._began_s = due_s
            self._stops_sending_s = due_s + (self._extent.send_for_s or math.inf)
            if self.on_counting is not None:
                self.on_counting()

    async def _send(self, place: int, due_s: float) -> ClientRecord:
        options = self._options
        turn, of = divmod(place, len(self._prepared))
        prepared = self._prepared[of]
        if options.salt is not None:
            prepared = prepared.salted(f"{options.salt}-{turn}")
        self._meter.change(+1)
        self._open[place] = time.monotonic()
        try:
            record = await send(
                self._connections,
                prepared,
                due_s,
                options.timeout_s,
                self._ends_s,
                options.retokenise,
                turn,
            )
        finally:
            self._meter.change(-1)
        del self._open[place]
        self._records[place] = record
        self._failed += not record.ok
        if self.on_progress is not None:
            total = None if self._count == _ENDLESS else self._count
            counted = place >= self._extent.warm_up
            done = len(self._records)
            self.on_progress(Progress(done, self._failed, self._meter.in_flight, total, record, counted))
        return record

    async def _sleep_until(self, due_s: float, awake: bool = False) -> None:
        """`awake`: watch the sockets without sleeping for the last moment, so as not to sleep past it."""
        spare_s = _TIMER_S if awake else 0.0
        while (left_s := due_s - time.monotonic()) > 0.0:
            await asyncio.sleep(max(0.0, left_s - spare_s))


def _check_plan(arrivals: Arrivals, extent: Extent) -> None:
    """Raise UsageError for a schedule that would fill the memory before its first request."""
    if isinstance(arrivals, Closed):
        return
    sent = extent.requests if extent.requests is not None else arrivals.rate_per_s * (extent.send_for_s or 0.0)
    if (expected := extent.warm_up + sent) > MOST_REQUESTS:
        raise UsageError(
            f"{expected:.3g} requests are more than one run can plan ({MOST_REQUESTS:,}): lower the rate, the time or their "
            "number"
        )


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
