"""Clients that nobody wishes for: they send nonsense or half a request, have no key, read slowly or leave."""

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import aiohttp

from benchmarks.soak.asking import CHAT, COMPLETIONS, PROMPTS, TOKENS, body_of
from benchmarks.soak.world import World

LONG_BODY = {"prompt": "word " * 12_000, "max_tokens": 1}  # too long for the model, and large enough for a thread
BAD: Sequence[tuple[str, bytes, frozenset[int]]] = tuple(
    (path, body if isinstance(body, bytes) else json.dumps(body).encode(), frozenset({400, 404, 405, 413}))
    for path, body in (
        (CHAT, b""),
        (CHAT, b"{"),
        (CHAT, b'{"messages": [}'),
        (CHAT, b"\xff\xfe{}"),
        (CHAT, b"[" * 5000),
        (CHAT, []),
        (CHAT, None),
        (CHAT, {}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": {}}),
        (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10**9}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "n": 10**6}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 10**9, "logprobs": True}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema"}}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "stop": [""] * 40}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "model": "another"}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "priority": -(10**6)}),
        (COMPLETIONS, {"prompt": ""}),
        (COMPLETIONS, {"prompt": []}),
        (COMPLETIONS, {"prompt": [[]]}),
        (COMPLETIONS, {"prompt": [-1]}),
        (COMPLETIONS, {"prompt": [10**9]}),
        (COMPLETIONS, {"prompt": "x", "max_tokens": True}),
        (COMPLETIONS, LONG_BODY),
        (COMPLETIONS, b'{"prompt": "' + b"x" * (5 << 20) + b'"}'),
        ("/v1/nothing", {}),
    )
)


async def leaving(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """The client leaves at a random moment: while it is queued, in prefill or decode, streaming or not."""
    body = body_of(rng.randrange(len(PROMPTS)), rng, max_tokens=TOKENS * 4)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(rng.choice((0.0, 0.005, 0.03, 0.1, 0.4, 1.0)) * rng.random()):
            async with session.post(CHAT, json=body) as response:
                await response.read()
    world.tally.outcomes["left"] += 1


async def bad(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """Nonsense gets a 4xx in OpenAI's shape."""
    path, data, statuses = rng.choice(BAD)
    async with session.post(path, data=data, headers={"content-type": "application/json"}) as response:
        answer = await response.json()
        if response.status not in statuses or not isinstance(answer["error"]["message"], str):
            world.tally.fault(f"bad {path} {data[:80]!r}: {response.status} {answer}")
    world.tally.outcomes["refused"] += 1


async def strangers(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """No key, a wrong one, one of a known id with a wrong secret, and other headers that are none."""
    for value in rng.sample(("", "Bearer", "Basic eDp5", "Bearer x", f"Bearer {world.key[:-4]}abcd", "Bearer \xe9"), 2):
        async with session.post(CHAT, json={}, headers={"Authorization": value}) as response:
            if response.status != 401 or "www-authenticate" not in response.headers:
                world.tally.fault(f"strangers: {value!r} got {response.status}")
    world.tally.outcomes["refused"] += 1


async def large(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """Bodies that are read beside the event loop, several at once."""

    async def one() -> None:
        async with session.post(COMPLETIONS, json=LONG_BODY) as response:
            if response.status != 400:
                world.tally.fault(f"large: {response.status} {await response.text()}")

    await asyncio.gather(*(one() for _ in range(8)))
    world.tally.outcomes["refused"] += 1


async def slow_reader(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """A stream whose client hardly reads, or does not read at all, and at last closes or resets the connection."""
    body = json.dumps(body_of(3, rng, max_tokens=TOKENS * 3, stream=True, logprobs=True, top_logprobs=5)).encode()
    with _raw(world, rng, body) as client:
        loop = asyncio.get_running_loop()
        reads = rng.random() < 0.5
        for _ in range(rng.randrange(4, 40)):
            await asyncio.sleep(0.1)
            if reads and not await loop.sock_recv(client, 64):
                break
        if rng.random() < 0.5:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    world.tally.outcomes["left"] += 1


async def half_a_request(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """A client that sends the beginning of a head or of a body, and waits or leaves; or bytes that are no HTTP."""
    body = json.dumps(body_of(0, rng)).encode()
    with _raw(world, rng, body, cut=rng.random()) as client:
        if rng.random() < 0.3:
            await asyncio.get_running_loop().sock_sendall(client, b"\x00\x01 nonsense \r\n\r\n")
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.2, 1.0)))
    world.tally.outcomes["left"] += 1


@contextlib.contextmanager
def _raw(world: World, rng: random.Random, body: bytes, cut: float = 1.0) -> Iterator[socket.socket]:
    """A socket with a small receive buffer that has sent (a part of) a request."""
    at = urlsplit(world.url)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: {at.hostname}\r\nAuthorization: Bearer {world.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    data = head + body
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(10)
        client.connect((at.hostname, at.port))
        client.sendall(data[: max(1, int(len(data) * cut))])
        client.setblocking(False)
        yield client
