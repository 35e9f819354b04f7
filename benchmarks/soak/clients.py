"""How often a client does what, and what it means when that does not end well."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping

import aiohttp

from benchmarks.soak.answered import burst, hurried, limited, looking, plain, several, stopped, structured
from benchmarks.soak.unwelcome import bad, half_a_request, large, leaving, slow_reader, strangers
from benchmarks.soak.world import World

Scenario = Callable[[World, aiohttp.ClientSession, random.Random], Awaitable[None]]
SCENARIOS: Mapping[Scenario, int] = {
    plain: 40,
    several: 6,
    stopped: 10,
    structured: 5,
    hurried: 10,
    leaving: 14,
    bad: 12,
    strangers: 3,
    limited: 3,
    burst: 1,
    large: 1,
    looking: 4,
    slow_reader: 3,
    half_a_request: 5,
}


async def one(world: World, session: aiohttp.ClientSession, rng: random.Random, scenario: Scenario) -> None:
    """Run one scenario; one that does not end in time is a hung request, any other failure a fault."""
    name = scenario.__name__
    world.tally.kinds[name] += 1
    try:
        async with asyncio.timeout(world.hung_after_s):
            await scenario(world, session, rng)
    except TimeoutError:
        world.tally.hung += 1
        world.tally.fault(f"{name}: no end after {world.hung_after_s:g} s")
    except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
        world.tally.fault(f"{name}: {type(error).__name__}: {error}")


async def client(world: World, seed: int, stop: asyncio.Event) -> None:
    """One client that does one thing after another until told to stop."""
    rng = random.Random(seed)
    async with world.session() as session:
        while not stop.is_set():
            (scenario,) = rng.choices(tuple(SCENARIOS), tuple(SCENARIOS.values()))
            await one(world, session, rng, scenario)
            if time.monotonic() < world.down_until_s:
                await asyncio.sleep(0.5)  # what a client does that is told to come back
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.3)
