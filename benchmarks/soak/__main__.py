"""Mixed load with aborts, bad input, slow clients and killed engines on one server; at the end nothing may be left behind.

python -m benchmarks.soak [--minutes N] [--json FILE]. `netgain serve` runs the default model with n-gram speculation, prefix
cache, API keys and a KV pool so small that requests are preempted. After a warm-up, periods of load alternate with moments
of rest; in every period the engine process is killed once. Answers are compared with those of the idle server (`wrong_tokens`:
positions or texts that differ); a request without an end is `hung`. In each rest: KV blocks not free (`leaked_blocks`), and
descriptors, threads, child processes and asyncio tasks above the level after warm-up (`leaked_handles`), at their worst.
`rss_growth_ratio` is the HTTP process's memory at the end over that after warm-up, `engine_rss_growth_ratio` the same over the
longest undisturbed life of an engine. Exits with 1 when anything leaked, was wrong, hung or unexpected.
"""

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks import _report
from benchmarks.soak.asking import references
from benchmarks.soak.clients import SCENARIOS, client, one
from benchmarks.soak.level import RECOVERY_S, health, metrics, rest
from benchmarks.soak.unwelcome import large
from benchmarks.soak.world import Tally, World
from netgain.deciding.experiment.arms.netgain import launched_netgain
from netgain.serving.api.keys import KeyLimits, new_key

START_S = 300.0
CLIENTS = 10
HUNG_AFTER_S = 90.0
SETTINGS = (
    "engine.speculation.method=ngram",
    "engine.cache.kv_tokens=512",
    "engine.scheduler.max_running=6",
    "engine.scheduler.max_waiting=16",
    "engine.scheduler.max_batch_tokens=256",
    "fleet.restart_backoff_s=0.2",
    "fleet.heartbeat_s=0.2",
    "server.write_timeout_s=2",
    "server.body_timeout_s=2",
    "server.head_timeout_s=2",
    "send_buffer_bytes=4096",
)


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long the load lasts, warm-up included")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="netgain-soak-") as folder:
        figures = asyncio.run(soak(Path(folder), tally, arguments.minutes * 60, arguments.seed))
    context = {"minutes": arguments.minutes, "seed": arguments.seed, "clients": CLIENTS, "settings": SETTINGS}
    context |= {"rests": tally.rests, "faults": tally.faults}
    _report.write(arguments.json, figures, context, "Soak")
    for fault in tally.faults:
        print(fault, file=sys.stderr)
    must_be_none = ("leaked_blocks", "leaked_handles", "wrong_tokens", "hung_requests", "unexpected_answers")
    sys.exit(any(figures[name] != 0 for name in must_be_none))


async def soak(folder: Path, tally: Tally, seconds: float, seed: int) -> dict[str, _report.Figure]:
    """The figures; `tally` is filled on the way."""
    keys = folder / "keys.json"
    world = World(
        url="",
        key=new_key(keys, "tenant-a", KeyLimits()),
        poor_key=new_key(keys, "tenant-b", KeyLimits(max_in_flight=2, requests_per_minute=30, tokens_per_minute=2000)),
        operator_key=new_key(keys, "operators", KeyLimits(), operator=True),
        tally=tally,
        hung_after_s=HUNG_AFTER_S,
    )
    flags = ["default", "--api-keys", str(keys), "--records", str(folder / "records.jsonl")]
    server = launched_netgain(
        "soak", (*flags, *(part for setting in SETTINGS for part in ("--set", setting))), folder / "server.log"
    )
    try:
        await server.start()
        await server.ready(START_S)
        world.url = server.url
        await references(world)
        figures = await _phases(world, seconds, seed)
    except BaseException:
        print((folder / "server.log").read_text(errors="replace")[-4000:], file=sys.stderr)
        raise
    finally:
        await server.stop()
    return figures


async def _phases(world: World, seconds: float, seed: int) -> dict[str, _report.Figure]:
    """Warm-up, then periods of load with a kill in each, and a look at what is held after every one."""
    started_s = time.monotonic()
    period_s = min(180.0, max(20.0, seconds / 4))
    await _warm_up(world, seed)
    base = await rest(world)
    levels, kills, lives = [base], 0, {base.engine_pid: [base.engine_rss_bytes]}
    period = 0
    while (left_s := seconds - (time.monotonic() - started_s)) > 5:
        period += 1
        load_s = min(period_s, left_s)
        load = asyncio.create_task(_load(world, seed * 1000 + period, load_s))
        await asyncio.sleep(load_s * 0.4)
        await _kill(world)
        kills += 1
        await load
        level = await rest(world)
        levels.append(level)
        lives.setdefault(level.engine_pid, []).append(level.engine_rss_bytes)
        if time.monotonic() - started_s < seconds - 10:  # the same engine under load again, for its memory
            await _load(world, seed * 1000 + 500 + period, min(period_s / 2, seconds - (time.monotonic() - started_s)))
            level = await rest(world)
            levels.append(level)
            lives[level.engine_pid].append(level.engine_rss_bytes)
    grown = [level.above(base) for level in levels]
    worst = max(grown, key=lambda more: sum(more.values()))
    world.tally.rests = [{**level.above(base), "rss_mib": level.rss_bytes >> 20} for level in levels]
    counters = await metrics(world)
    life = max(lives.values(), key=len)
    tally = world.tally
    return {
        "leaked_blocks": max(level.leaked_blocks for level in levels),
        "leaked_handles": sum(worst.values()),
        "wrong_tokens": tally.wrong,
        "hung_requests": tally.hung,
        "unexpected_answers": tally.outcomes["unexpected"],
        "rss_growth_ratio": levels[-1].rss_bytes / base.rss_bytes,
        "engine_rss_growth_ratio": life[-1] / life[0] if len(life) > 1 else None,
        "requests": sum(tally.kinds.values()),
        "checked_answers": tally.checked,
        "kills": kills,
        "rests": len(levels),
        "preemptions": int(counters.get("netgain_preemptions_total", 0)),
        "accepted_drafts": int(counters.get("netgain_accepted_tokens_total", 0)),
        "records_refused": int(counters.get("netgain_records_refused_total", 0)),
        **{f"kind_{name}": count for name, count in sorted(tally.kinds.items())},
        **{f"outcome_{name.replace(' ', '_')}": count for name, count in sorted(tally.outcomes.items())},
        **{f"leaked_{name}": count for name, count in worst.items()},
        "http_rss_mib": levels[-1].rss_bytes / 2**20,
        "engine_rss_mib": levels[-1].engine_rss_bytes / 2**20,
    }


async def _warm_up(world: World, seed: int) -> None:
    """Every kind once at least, so that pools of threads and caches have their size."""
    async with world.session() as session:
        for _ in range(2):
            await asyncio.gather(*(one(world, session, random.Random(seed), scenario) for scenario in SCENARIOS))
        await one(world, session, random.Random(seed), large)
    await _load(world, seed, 8.0)


async def _load(world: World, seed: int, seconds: float) -> None:
    stop = asyncio.Event()
    clients = [asyncio.create_task(client(world, seed * 100 + number, stop)) for number in range(CLIENTS)]
    await asyncio.sleep(seconds)
    stop.set()
    await asyncio.gather(*clients)


async def _kill(world: World) -> None:
    """SIGKILL to the engine process under load; it must be replaced in time."""
    started_s = time.monotonic()
    world.down_until_s = started_s + RECOVERY_S
    async with aiohttp.ClientSession(world.url) as session:
        pid = (await health(session))["replicas"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        while time.monotonic() < started_s + RECOVERY_S:
            await asyncio.sleep(0.1)
            told = await health(session)
            if told["status"] == "ready" and told["replicas"][0]["pid"] != pid:
                world.down_until_s = time.monotonic() + 1.0
                return
    world.tally.fault(f"no new engine {RECOVERY_S:g} s after the old one was killed")


if __name__ == "__main__":
    main()
