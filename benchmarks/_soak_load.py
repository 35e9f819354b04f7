"""What the clients of the soak do: one function per kind of behaviour, good and bad, each checked against what must follow."""

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

PROMPTS = (
    "Name three rivers in Europe.",
    "Copy this sentence ten times: the ferry leaves the harbour every ninety minutes.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "List the numbers from one to forty in words.",
    "Explain to a child why the sky is blue, " + "step by step and with many examples, " * 12 + "please.",
    "Here is a list. " + " ".join(f"Item {i}: the market opens at {i % 12 + 1} in the morning." for i in range(24)),
)
LONG_BODY = {"prompt": "word " * 12_000, "max_tokens": 1}  # too long for the model, and large enough for a thread
TOKENS = 40
SEED = 7
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

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


@dataclass
class Tally:
    """What happened: requests by kind and by outcome, and what should not have."""

    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    wrong: int = 0
    hung: int = 0
    faults: list[str] = field(default_factory=list)
    rests: list[dict[str, int]] = field(default_factory=list)  # what was above the first level, at every look

    def fault(self, text: str) -> None:
        if len(self.faults) < 40:
            self.faults.append(text)
        self.outcomes["unexpected"] += 1


@dataclass
class World:
    """The server under load, what its greedy answers are, and when its engine was lost on purpose."""

    url: str
    key: str
    poor_key: str
    operator_key: str
    tally: Tally
    hung_after_s: float
    references: dict[tuple[int, float], "Reference"] = field(default_factory=dict)
    down_until_s: float = 0.0

    def engine_may_be_lost(self, started_s: float) -> bool:
        return started_s <= self.down_until_s

    def session(self, key: str | None = None) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key or self.key}"},
            timeout=aiohttp.ClientTimeout(total=None),
        )


@dataclass(frozen=True)
class Reference:
    """An answer of the idle server."""

    ids: tuple[int, ...]
    text: str


@dataclass
class Outcome:
    """What came back for one request. `error` is the code of an error, before the answer or as a stream's last event."""

    status: int
    texts: dict[int, str] = field(default_factory=dict)
    finish: dict[int, str] = field(default_factory=dict)
    ids: tuple[int, ...] | None = None
    error: str | None = None
    message: str = ""
    complete: bool = False
    retry_after: str | None = None


Scenario = Callable[[World, aiohttp.ClientSession, random.Random], Awaitable[None]]


def body_of(prompt: int, rng: random.Random, **fields: Any) -> dict[str, Any]:
    temperature = fields.pop("temperature", 0.0)
    return {
        "messages": [{"role": "user", "content": PROMPTS[prompt]}],
        "max_tokens": rng.choice((1, 3, 8, TOKENS, TOKENS)),
        "temperature": temperature,
        "seed": SEED,
        "stream": rng.random() < 0.5,
        "netgain": {"record": True, "tokens": True},
        **fields,
    }


async def ask(session: aiohttp.ClientSession, body: Mapping[str, Any], path: str = CHAT) -> Outcome:
    """One request to its end."""
    async with session.post(path, json=body) as response:
        outcome = Outcome(response.status, retry_after=response.headers.get("retry-after"))
        if response.status != 200:
            _note_error(outcome, await response.json())
        elif not body.get("stream"):
            answer = await response.json()
            for choice in answer["choices"]:
                outcome.texts[choice["index"]] = choice["message"]["content"] or ""
                outcome.finish[choice["index"]] = choice["finish_reason"]
            _note_record(outcome, answer)
            outcome.complete = True
        else:
            async for event in events(response):
                if event == "[DONE]":
                    outcome.complete = True
                    break
                _note_chunk(outcome, json.loads(event))
    return outcome


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line[6:].strip().decode()


def _note_chunk(outcome: Outcome, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        _note_error(outcome, chunk)
        return
    for choice in chunk["choices"]:
        at = choice["index"]
        outcome.texts[at] = outcome.texts.get(at, "") + (choice["delta"].get("content") or "")
        if choice["finish_reason"]:
            outcome.finish[at] = choice["finish_reason"]
    _note_record(outcome, chunk)


def _note_error(outcome: Outcome, answer: dict[str, Any]) -> None:
    outcome.error = answer["error"]["code"] or answer["error"]["type"]
    outcome.message = answer["error"]["message"]


def _note_record(outcome: Outcome, answer: dict[str, Any]) -> None:
    record = answer.get("netgain")
    record = record[0] if isinstance(record, list) and len(record) == 1 else record
    if isinstance(record, dict) and record.get("output_ids") is not None:
        outcome.ids = tuple(record["output_ids"])


async def references(world: World) -> None:
    """The answers of the idle server, greedy and sampled with a seed."""
    rng = random.Random(0)
    async with world.session() as session:
        for prompt in range(len(PROMPTS)):
            for temperature in (0.0, 0.8):
                fields = {"temperature": temperature, "max_tokens": TOKENS, "stream": False}
                outcome = await ask(session, body_of(prompt, rng, **fields))
                if outcome.ids is None:
                    raise SystemExit(f"the idle server gave no reference for prompt {prompt}: {outcome}")
                world.references[prompt, temperature] = Reference(outcome.ids, outcome.texts[0])


def check(world: World, outcome: Outcome, reference: Reference, what: str, stop: str | None = None) -> None:
    """Count the tokens that differ from the reference's; an answer that was cut must be its beginning."""
    expected = reference.text if stop is None else reference.text.partition(stop)[0]
    world.tally.checked += 1
    if outcome.ids is not None:
        wrong = sum(a != b for a, b in zip(outcome.ids, reference.ids, strict=False))
        wrong += max(0, len(outcome.ids) - len(reference.ids))
    else:
        wrong = 0
    for at, text in outcome.texts.items():
        if not expected.startswith(text.removesuffix("�")):
            wrong += 1
            world.tally.fault(f"{what}: choice {at} is {text!r}, the reference {expected!r}")
    if wrong:
        world.tally.wrong += wrong
        world.tally.fault(f"{what}: {wrong} tokens differ from the reference")


def settle(world: World, outcome: Outcome, started_s: float, what: str, also: Sequence[str] = ()) -> bool:
    """File the outcome; True when it is a whole answer. Overload and a lost engine are answers, too, in their time."""
    tally = world.tally
    if outcome.status == 200 and outcome.complete and outcome.error is None:
        tally.outcomes["ok"] += 1
        return True
    if outcome.status == 429 and outcome.error in ("queue_full", *also):
        if not (outcome.retry_after or "").isdecimal():
            tally.fault(f"{what}: 429 without Retry-After")
        tally.outcomes["overloaded"] += 1
    elif outcome.error == "engine_unavailable" and world.engine_may_be_lost(started_s):
        tally.outcomes["engine lost"] += 1
    elif outcome.error in also:
        tally.outcomes[str(outcome.error)] += 1
    else:
        tally.fault(f"{what}: {outcome.status} {outcome.error} {outcome.message[:200]} complete={outcome.complete}")
    return False


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


async def large(world: World, session: aiohttp.ClientSession, rng: random.Random) -> None:
    """Bodies that are read beside the event loop, several at once."""

    async def one() -> None:
        async with session.post(COMPLETIONS, json=LONG_BODY) as response:
            if response.status != 400:
                world.tally.fault(f"large: {response.status} {await response.text()}")

    await asyncio.gather(*(one() for _ in range(8)))
    world.tally.outcomes["refused"] += 1


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
def _raw(world: World, rng: random.Random, body: bytes, cut: float = 1.0) -> Any:
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
    name = scenario.__name__  # type: ignore[attr-defined]
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
