"""What the two processes hold in a moment of rest: what is above the first such moment was left behind."""

import asyncio
import time
from dataclasses import dataclass

import aiohttp
import psutil

from benchmarks.soak.world import World

REST_S = 30.0  # the longest that a server without load may need to come to rest
RECOVERY_S = 60.0


@dataclass(frozen=True)
class Level:
    """What the two processes hold in a moment of rest."""

    leaked_blocks: int
    handles: dict[str, int]
    rss_bytes: int
    engine_pid: int
    engine_rss_bytes: int

    def above(self, base: "Level") -> dict[str, int]:
        grown = {name: count - base.handles.get(name, 0) for name, count in self.handles.items()}
        return {name: count for name, count in grown.items() if count > 0}


async def rest(world: World) -> Level:
    """Wait until nothing runs and nothing changes any more, and look; what has not come to rest in time is a leak."""
    deadline_s = time.monotonic() + REST_S
    before: dict[str, int] = {}
    while True:
        async with aiohttp.ClientSession(world.url) as session:
            told = await health(session)
        gauges = await metrics(world)
        pid = told["replicas"][0]["pid"]
        busy = told["replicas"][0]["in_flight"]
        await asyncio.sleep(0.3)  # the server has closed its end of these two questions by then
        level = None
        if pid is not None and "netgain_kv_blocks" in gauges:
            busy += int(gauges["netgain_requests_running"] + gauges["netgain_requests_waiting"])
            missing = int(gauges["netgain_kv_blocks"] - gauges["netgain_kv_blocks_free"])
            engine = psutil.Process(pid)
            handles = _handles(engine, int(gauges["netgain_http_tasks"]))
            parent = engine.parent()
            assert parent is not None
            level = Level(missing, handles, parent.memory_info().rss, pid, engine.memory_info().rss)
            if not busy and not missing and handles == before:
                return level
            before = handles
        if time.monotonic() > deadline_s and level is not None:
            if busy:
                world.tally.fault(f"{busy} requests are still held {REST_S:g} s after the last client left")
            return level
        if time.monotonic() > deadline_s + RECOVERY_S:
            raise SystemExit(f"the server does not come to rest: {told}")
        await asyncio.sleep(1.5)


def _handles(engine: psutil.Process, tasks: int) -> dict[str, int]:
    http = engine.parent()
    assert http is not None
    return {
        "http_files": http.num_fds(),
        "http_threads": http.num_threads(),
        "http_children": len(http.children(recursive=True)),
        "http_tasks": tasks,
        "engine_files": engine.num_fds(),
        "engine_threads": engine.num_threads(),
    }


async def health(session: aiohttp.ClientSession) -> dict:  # type: ignore[type-arg]
    async with session.get("/health") as response:
        return dict(await response.json())


async def metrics(world: World) -> dict[str, float]:
    """Every metric, summed over its labels."""
    async with aiohttp.ClientSession(world.url) as session, session.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found
