"""One window of load on one server: sends, watches the server's metrics over exactly that time, and says what came out."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

import msgspec

from netgain.measuring.client.extent import Extent
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.client.run import Progress, Run, Stop, run
from netgain.measuring.client.summary import Summary, mean_in_flight, summarise, window
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.result import Load, load_of
from netgain.measuring.measurement.server import Met
from netgain.measuring.observe.scrape import Observed, Watch
from netgain.measuring.workload.arrivals import Arrivals, Closed
from netgain.measuring.workload.item import Item
from netgain.measuring.workload.slo import SLO, Target

_HURRY_S = 1.0  # for the last look at the metrics of a server, once a measurement was interrupted


class Conducted(msgspec.Struct, frozen=True, kw_only=True):
    """`began_unix_s`: when the first counted request was due, `ended_unix_s`: when the last one had ended. `early`: the target
    that ended it, being out of reach."""

    run: Run
    extent: Extent
    summary: Summary
    server_side: Observed | None
    began_unix_s: float
    ended_unix_s: float
    early: Target | None = None


def ramp(arrivals: Arrivals, unloaded_s: float, warm_up_s: float | None) -> int:
    """How many requests to send before those that count.

    A closed loop is full once each of its places has begun a second request. An open loop is taken to fill up within twice the
    time of a single request, unless `warm_up_s` says otherwise.
    """
    if isinstance(arrivals, Closed):
        if warm_up_s is None:
            return 0 if arrivals.concurrency == 1 else arrivals.concurrency
        return round(arrivals.concurrency * warm_up_s / max(unloaded_s, 1e-3))
    return math.ceil(arrivals.rate_per_s * (2.0 * unloaded_s if warm_up_s is None else warm_up_s))


async def conduct(
    met: Met,
    items: Sequence[Item],
    arrivals: Arrivals,
    extent: Extent,
    slo: SLO | None,
    expected_s: float,
    on_progress: Callable[[Progress], None] | None = None,
    give_up: bool = False,
    tag: str = "",
    ends_within_s: float | None = None,
) -> Conducted:
    """`give_up`: end as soon as a target of `slo` cannot be met any more, whatever the remaining requests do.

    `ends_within_s`: what is not answered by then has failed. An interruption (cancelling) ends the load, and leaves a result.
    `tag` sets this window's cache salts apart from those of other windows.
    """
    assert met.server.model is not None
    watch = None
    if met.metrics_url is not None:
        watch = Watch(met.metrics_url, dict(met.options.headers), expected_s, met.server.model)
    options = msgspec.structs.replace(met.options, keep_interrupted=True, deadline_s=ends_within_s)
    if options.salt is not None:
        options = msgspec.structs.replace(options, salt=f"{options.salt}{tag}")
    limits = _Limits(slo, extent, items) if give_up and slo is not None else None
    scraping: asyncio.Task[None] | None = None

    def begin_counting() -> None:
        nonlocal scraping
        if watch is not None and scraping is None:
            scraping = asyncio.create_task(watch.begin(), name="first scrape")

    def progress(seen: Progress) -> None:
        if on_progress is not None:
            on_progress(seen)
        if limits is not None:
            limits.see(seen)

    try:
        if watch is not None and extent.warm_up == 0:
            # nothing is in flight, so this window begins before its first request and misses nothing of it
            begin_counting()
            assert scraping is not None
            await scraping
        done = await run(met.base, met.server.model, items, arrivals, options, progress, extent, begin_counting)
        server_side = None
        if watch is not None and scraping is not None:
            server_side = await _ended(watch, scraping, hurried=done.stopped)
    finally:
        if scraping is not None:
            scraping.cancel()
            await asyncio.wait((scraping,))
        if watch is not None:
            await watch.close()
    unix_s = time.time() - time.monotonic()
    return Conducted(
        run=done,
        extent=extent,
        summary=summarise(done, slo),
        server_side=server_side,
        began_unix_s=unix_s + done.started_s,
        ended_unix_s=unix_s + done.finished_s,
        early=None if limits is None else limits.missed,
    )


async def _ended(watch: Watch, scraping: asyncio.Task[None], hurried: bool) -> Observed:
    """What the server's metrics say. The load is over: nothing that happens here may cost its result."""
    try:
        async with asyncio.timeout(_HURRY_S if hurried else None):
            await scraping
            return await watch.end()
    except TimeoutError:
        why = "it did not answer at once when the measurement was ended"
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        why = "it was interrupted before they were read"
    return Observed(url=watch.url, absent=f"{watch.url} could not be read at the window's end: {why}")


def load_for(ask: Ask, met: Met, arrivals: Arrivals, extent: Extent) -> Load:
    """What was sent, in the words of a result."""
    return msgspec.structs.replace(
        load_of(arrivals),
        warm_up=extent.warm_up,
        duration_s=extent.send_for_s,
        requests=extent.requests,
        timeout_s=met.options.timeout_s,
        max_tokens=ask.max_tokens,
        temperature=ask.temperature,
        salted=met.options.salt is not None,
    )


def growing(done: Run) -> bool:
    """Whether ever more requests were in flight: more than twice as many in the last third of the window as in the first."""
    began_s, ended_s = window(done)
    third = (ended_s - began_s) / 3.0
    if third <= 0.0:
        return False
    first = mean_in_flight(done.changes, began_s, began_s + third)
    last = mean_in_flight(done.changes, ended_s - third, ended_s)
    return last > 2.0 * first + 3.0


class _Limits:
    """Counts requests that miss a target, and raises Stop when its quantile can no longer hold."""

    def __init__(self, slo: SLO, extent: Extent, items: Sequence[Item]) -> None:
        requests = extent.requests or 0
        sent = range(extent.warm_up, extent.warm_up + requests)
        gaps = sum(items[place % len(items)].max_tokens - 1 for place in sent)  # at most
        planned = ((target, gaps if target.metric == "itl" else requests) for target in slo.targets)
        self._allowed = [
            (target, most - math.ceil(target.quantile * most - 1e-9)) for target, most in planned if requests
        ]
        self._misses = [0] * len(self._allowed)
        self.missed: Target | None = None

    def see(self, progress: Progress) -> None:
        if not progress.counted:
            return
        for place, (target, allowed) in enumerate(self._allowed):
            self._misses[place] += _misses(target, progress.last)
            if self._misses[place] > allowed:
                self.missed = target
                raise Stop


def _misses(target: Target, record: ClientRecord) -> int:
    """How many samples of the target's population miss it: the request, or its tokens."""
    if target.metric == "itl" and record.ok:
        return sum(tokens for gap_s, tokens in record.token_gaps() if gap_s > target.limit_s)
    return int(target.met_by(record) is False)
