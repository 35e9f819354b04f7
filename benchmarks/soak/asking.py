"""One request to its end, and what came back for it."""

import json
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from benchmarks.soak.world import Outcome, Reference, World

PROMPTS = (
    "Name three rivers in Europe.",
    "Copy this sentence ten times: the ferry leaves the harbour every ninety minutes.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "List the numbers from one to forty in words.",
    "Explain to a child why the sky is blue, " + "step by step and with many examples, " * 12 + "please.",
    "Here is a list. " + " ".join(f"Item {i}: the market opens at {i % 12 + 1} in the morning." for i in range(24)),
)
TOKENS = 40
SEED = 7
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


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
