"""Watches a deployed service: scrapes its metrics, cuts them into windows by what the counters gained, and judges each."""

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import aiohttp
import msgspec

from netgain.deciding.experiment.rollback import Rollback
from netgain.deciding.guard.rule import Finding, examine, read
from netgain.errors import Unavailable, UsageError
from netgain.measuring.client.endpoint import base_url
from netgain.measuring.observe.exposition import Snapshot, read_exposition
from netgain.measuring.observe.names import Engine, engine_of
from netgain.measuring.observe.window import observed
from netgain.plain_file import read_plain

PATIENCE_S = 10.0
MOST_SNAPSHOTS = 120  # kept of a window: its first, and so many of the last, for means of gauges


class Status(msgspec.Struct, frozen=True):
    """One line of the watch: a finding of a full window, or (None) how far the window is and what is in the way."""

    finding: Finding | None
    says: str


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a window, kept between runs: the metrics as they were then, and of which server."""

    url: str
    at_unix_s: float
    text: str


def metrics_url(url: str) -> str:
    """URL/metrics, or the URL itself where it ends so. Raises UsageError."""
    bare = base_url(url)
    return bare if bare.endswith("/metrics") else f"{bare}/metrics"


class Guard:
    """Windows of one service under one rule. `step` scrapes once; nothing is raised for what the service does."""

    def __init__(self, rule: Rollback, url: str, headers: dict[str, str] | None = None) -> None:
        self.rule = rule
        self.url = metrics_url(url)
        self._headers = headers or {}
        self._snapshots: list[Snapshot] = []
        self._text: str | None = None
        self._unix_s = time.time() - time.monotonic()

    async def step(self, at_s: Callable[[], float] | None = None) -> Status:
        """One scrape, and what it means. A full window is judged, and the next one begins with its end.

        Windows are in Unix time, which goes on when the machine starts again between two runs, as it was when this one began: a
        clock that is set meanwhile moves no window."""
        text, failure = await fetch(self.url, self._headers)
        if text is None:
            return Status(None, f"cannot tell: {self.url} does not answer ({failure})")
        now = read_exposition(text, self._unix_s + time.monotonic() if at_s is None else at_s())
        if not now.families:
            return Status(None, f"cannot tell: {self.url} answers, but not with Prometheus metrics")
        engine = engine_of(set(now.families))
        if engine is None:
            return Status(None, f"cannot tell: the metrics of {self.url} are of no engine that is known here")
        first = not self._snapshots
        self._snapshots.append(now)
        if len(self._snapshots) > MOST_SNAPSHOTS:
            del self._snapshots[1]
        if first:
            self._text = text
            return Status(None, f"a window begins ({engine})")
        window = observed(self._snapshots)
        assert window is not None
        if window.restarts:
            self._begin(now, text)
            return Status(
                None, f"cannot tell: the service was started again ({window.restarts[0]}); a new window begins"
            )
        reading = read(window, engine)
        if not reading.full(self.rule):
            return Status(None, f"{reading.progress(self.rule)} in {reading.seconds:.0f} s")
        finding = examine(self.rule, reading)
        self._begin(now, text)
        load = "" if reading.in_flight is None else f", {reading.in_flight:.1f} in flight"
        told = f"{finding.state}: {'; '.join(finding.says)} ({reading.progress(self.rule).split(' of ')[0]} in the window{load})"
        return Status(finding, told)

    def _begin(self, now: Snapshot, text: str) -> None:
        self._snapshots = [now]
        self._text = text

    def restore(self, path: Path) -> None:
        """Go on with the window that an earlier run began. Raises UsageError for a file that holds something else."""
        if not path.exists():
            return
        try:
            kept = msgspec.json.decode(read_plain(path), type=State)
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            raise UsageError(
                f"{path} holds no state of netgain guard ({error}); remove it, or name another file"
            ) from error
        if kept.url == self.url and kept.at_unix_s < self._unix_s + time.monotonic():  # else the clock was set back
            self._snapshots = [read_exposition(kept.text, kept.at_unix_s)]
            self._text = kept.text

    def keep(self, path: Path) -> None:
        """Keep the beginning of the window for a later run. Raises UsageError when the file cannot be written."""
        if not self._snapshots or self._text is None:
            return
        state = State(url=self.url, at_unix_s=self._snapshots[0].at_s, text=self._text)
        try:
            temporary = path.with_name(path.name + ".new")
            temporary.write_bytes(msgspec.json.encode(state))
            temporary.replace(path)
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror or error}); name another --state") from error


async def watch(
    guard: Guard, interval_s: float, on_status: Callable[[Status], bool], timeout_s: float | None = None
) -> None:
    """Step until `on_status` says that it is enough, or `timeout_s` is over."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        if on_status(await guard.step()):
            return
        if deadline is not None and time.monotonic() + interval_s > deadline:
            return
        await asyncio.sleep(interval_s)


async def engine_at(url: str, headers: dict[str, str] | None = None) -> Engine:
    """Which engine's metrics are there. Raises Unavailable when that cannot be told."""
    place = metrics_url(url)
    text, failure = await fetch(place, headers or {})
    if text is None:
        raise Unavailable(f"{place} does not answer ({failure})")
    engine = engine_of(set(read_exposition(text, 0.0).families))
    if engine is None:
        raise Unavailable(f"the metrics of {place} are of no engine that is known here")
    return engine


async def fetch(url: str, headers: dict[str, str]) -> tuple[str | None, str]:
    """The metrics as text, or None and why not."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    wanted = {**headers, "Accept": "text/plain;version=0.0.4"}
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, headers=wanted) as response:
            if response.status != HTTPStatus.OK:
                return None, f"status {response.status}"
            chunks = [chunk async for chunk in response.content.iter_chunked(1 << 16)]
            return b"".join(chunks).decode("utf-8", "replace"), ""
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return None, str(error) or type(error).__name__
