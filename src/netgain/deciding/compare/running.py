"""A server that already runs as an arm: it is neither started nor stopped here, and its counters are read between blocks."""

import asyncio
import math
from collections.abc import Mapping
from urllib.parse import urlsplit

import psutil

from netgain.deciding.experiment.arm import Observed
from netgain.deciding.experiment.arms.attached import AttachedServer
from netgain.deciding.experiment.counting import BEHIND_S
from netgain.deciding.experiment.verdict import Check
from netgain.measuring.observe.names import Engine
from netgain.measuring.observe.scrape import Observed as Watched
from netgain.measuring.observe.scrape import Watch

OTHERS_LIMIT = 0.1  # of the output tokens that this client got
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RunningServer:
    """A server that others run, whose counters are read between blocks and whose processes are seen if they are here.

    `metrics_url` None: nothing is scraped. `model`: the one that is measured. `engine`: which it
    is, to know how far its counters are behind (None: unknown).
    """

    def __init__(
        self,
        server: AttachedServer,
        metrics_url: str | None,
        model: str | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._server = server
        self._watch = None if metrics_url is None else Watch(metrics_url, dict(server.headers), math.inf, model)
        self._watching = False
        self._behind_s = 0.0 if engine is None else BEHIND_S.get(engine, 0.0)
        self._processes = local_processes(server.url)

    @property
    def name(self) -> str:
        return self._server.name

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def headers(self) -> Mapping[str, str]:
        return self._server.headers

    @property
    def command(self) -> tuple[str, ...]:
        return self._server.command

    async def start(self) -> None:
        await self._server.start()

    async def ready(self, timeout_s: float) -> None:
        await self._server.ready(timeout_s)

    async def reset(self) -> str:
        """Also where its counters are read: just before each of its blocks, so that a scrape disturbs none."""
        if self._watch is not None:
            if self._watching:
                await self._watch.look()
            else:
                self._watching = True
                await asyncio.sleep(self._behind_s)
                await self._watch.begin()
        return await self._server.reset()

    def observe(self) -> Observed | None:
        cpu_s, resident, alive = 0.0, 0, 0
        for process in self._processes:
            try:
                times = process.cpu_times()
                cpu_s += times.user + times.system
                resident += process.memory_info().rss
                alive += 1
            except psutil.Error:
                continue
        return Observed(cpu_s=cpu_s, resident_bytes=resident, processes=alive) if alive else None

    @property
    def resident_bytes(self) -> int | None:
        """Memory of its processes now; None where they cannot be seen."""
        return None if (seen := self.observe()) is None else seen.resident_bytes

    async def stop(self) -> None:
        """Ends only the watching."""
        if self._watch is not None:
            await self._watch.close()

    async def watched(self) -> Watched | None:
        """What its counters did from its first block until now. Call it once, at the end."""
        if self._watch is None or not self._watching:
            return None
        await asyncio.sleep(self._behind_s)
        return await self._watch.end()


def local_processes(url: str) -> tuple[psutil.Process, ...]:
    """The processes behind a port of this machine with their descendants; none where they cannot be seen."""
    parts = urlsplit(url)
    if parts.hostname not in LOOPBACK or parts.port is None:
        return ()
    try:
        listening = {
            connection.pid
            for connection in psutil.net_connections(kind="tcp")
            if connection.status == psutil.CONN_LISTEN
            and connection.pid
            and tuple(connection.laddr)[1:] == (parts.port,)
        }
        family = {psutil.Process(pid) for pid in listening}
        family |= {child for process in family for child in process.children(recursive=True)}
    except psutil.Error:
        return ()
    return tuple(family)


def check_servers(watched: Mapping[str, Watched | None], asked_tokens: Mapping[str, int | None]) -> tuple[Check, ...]:
    """Did a server begin again in the middle, and did others use it meanwhile? `asked_tokens`: output tokens that this client
    got from each server."""
    return (_restarts(watched), _others(watched, asked_tokens))


def _restarts(watched: Mapping[str, Watched | None]) -> Check:
    windows = {name: seen.window for name, seen in watched.items() if seen is not None and seen.window is not None}
    again = [f"{name}: {restart}" for name, window in windows.items() for restart in window.restarts]
    blind = [name for name in watched if name not in windows]
    told = "no server began again during the run"
    if again:
        told = (
            f"a server began again in the middle ({'; '.join(again)}), so its blocks are not of one start: run it again"
        )
    elif blind:
        told = f"the counters of {' and '.join(blind)} could not be read, so a restart would not have been seen"
    return Check(
        name="restarts", ok=False if again else None if blind else True, value=float(len(again)), limit=0.0, says=told
    )


def _others(watched: Mapping[str, Watched | None], asked_tokens: Mapping[str, int | None]) -> Check:
    shares: dict[str, float] = {}
    for name, seen in watched.items():
        figure = None if seen is None else seen.figures.get("output_tokens")
        ours = asked_tokens.get(name)
        if figure is not None and figure.gained is not None and ours:
            shares[name] = figure.gained / ours - 1.0
    busy = {name: share for name, share in shares.items() if share > OTHERS_LIMIT}
    told = "the servers' own counts of output tokens agree with the client's: nobody else used them"
    if busy:
        told = "others used a server meanwhile: " + ", ".join(
            f"{name} produced {share:.0%} more output tokens than this client got" for name, share in busy.items()
        )
    elif len(shares) < len(watched):
        told = "not every server tells how many tokens it produced, so others at work on it would not have been seen"
    return Check(
        name="other users of the servers",
        ok=False if busy else True if len(shares) == len(watched) and shares else None,
        value=max(shares.values(), default=None),
        limit=OTHERS_LIMIT,
        says=told,
    )
