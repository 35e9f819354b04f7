"""Clients that read their answers to the end, one function per kind of request, each checked against what must follow."""

import asyncio
import json
import random
import time

import aiohttp

from benchmarks.soak.asking import PROMPTS, TOKENS, ask, body_of
from benchmarks.soak.judging import check, settle
from benchmarks.soak.world import World


async def plain(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """Greedy or with a seed: the tokens are known."""
    prompt, temperature = rng.randrange(len(PROMPTS)), rng.choice((0.0, 0.0, 0.8))
    extra = rng.choice(({}, {"priority": rng.randrange(6)}, {"logprobs": True, "top_logprobs": 2}))
    started_s = time.monotonic()
    outcome = await ask(session, body_of(prompt, rng, temperature=temperature, **extra))
    settle(world, outcome, started_s, f"plain {extra}")
    check(world, outcome, world.references[prompt, temperature], f"plain {extra}")


async def several(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """Three greedy choices are three times the same."""
    prompt, started_s = rng.randrange(len(PROMPTS)), time.monotonic()
    outcome = await ask(session, body_of(prompt, rng, n=3, netgain={}))
    settle(world, outcome, started_s, "several")
    check(world, outcome, world.references[prompt, 0.0], "several")


async def stopped(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """A stop string out of the middle of the known answer."""
    prompt, started_s = rng.randrange(len(PROMPTS)), time.monotonic()
    reference = world.references[prompt, 0.0]
    at = rng.randrange(1, max(2, len(reference.text) - 4))
    stop = reference.text[at : at + rng.randrange(1, 5)] or "."
    outcome = await ask(session, body_of(prompt, rng, stop=[stop], max_tokens=TOKENS, netgain={}))
    settle(world, outcome, started_s, "stopped")
    check(world, outcome, reference, f"stopped at {stop!r}", stop)


async def structured(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """An answer that must match a schema; the whole ones are read back."""
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo", "Lima"]}, "size": {"type": "integer", "maximum": 99}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    started_s = time.monotonic()
    outcome = await ask(session, body_of(0, rng, response_format=form, max_tokens=64, netgain={}))
    if settle(world, outcome, started_s, "structured") and outcome.finish.get(0) == "stop":
        world.tally.checked += 1
        try:
            answer = json.loads(outcome.texts[0])
            right = answer["city"] in ("Rome", "Oslo", "Lima") and isinstance(answer["size"], int)
        except (ValueError, KeyError, TypeError):
            right = False
        if not right:
            world.tally.wrong += 1
            world.tally.fault(f"structured: {outcome.texts[0]!r} does not match its schema")


async def hurried(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """A time limit that often ends the request, wherever it is."""
    prompt, started_s = rng.randrange(len(PROMPTS)), time.monotonic()
    limit_s = rng.choice((0.001, 0.02, 0.1, 0.3, 1.0))
    outcome = await ask(session, body_of(prompt, rng, timeout_s=limit_s, max_tokens=TOKENS))
    settle(world, outcome, started_s, "hurried", ("deadline_exceeded",))
    check(world, outcome, world.references[prompt, 0.0], "hurried")


async def limited(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """A key with small limits."""
    codes = ("concurrency_limit_exceeded", "requests_limit_exceeded", "tokens_limit_exceeded")
    prompt, started_s = rng.randrange(3), time.monotonic()
    async with world.session(world.poor_key) as poor:
        for outcome in await asyncio.gather(*(ask(poor, body_of(prompt, rng)) for _ in range(3))):
            settle(world, outcome, started_s, "limited", codes)
            check(world, outcome, world.references[prompt, 0.0], "limited")


async def burst(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """More at once than the queue holds."""
    prompt, started_s = rng.randrange(len(PROMPTS)), time.monotonic()
    for outcome in await asyncio.gather(*(ask(session, body_of(prompt, rng, max_tokens=4)) for _ in range(40))):
        settle(world, outcome, started_s, "burst")
        check(world, outcome, world.references[prompt, 0.0], "burst")


async def looking(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """What watches a server, and the small endpoints."""
    for path in ("/health", "/health/live", "/metrics", "/v1/models"):
        async with session.get(path) as response:
            await response.read()
            if response.status != 200 and not (path == "/health" and response.status == 503):
                world.tally.fault(f"looking: {path} {response.status}")
    async with session.post("/tokenize", json={"prompt": "a few words"}) as response:
        if response.status != 200:
            world.tally.fault(f"looking: /tokenize {response.status}")
    world.tally.outcomes["ok"] += 1
