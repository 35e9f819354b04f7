"""What a server tells of its KV, and where the chunks of recorded prompts stand among their tokens, by its own tokenizer."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import cast

import aiohttp
import msgspec

from netgain.deciding.decide.outside import ASK_S, token_ids
from netgain.deciding.decide.server import whole_number
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.technique.chunks_told import ChunksSeen, blending_told
from netgain.deciding.technique.codecs_told import codecs_told
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.transfer_rates import disk_rates
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.names import Engine
from netgain.measuring.workload.item import Item

_EDGE = 2  # tokens at either end of a chunk that may be other ones where text stands beside it


async def as_served(facts: Facts, told: Mapping[str, str], arm: Arm, items: Sequence[Item]) -> Facts:
    """The facts with what the arm's server tells (`told`) of its KV, with the chunks of those of `items` that it answered,
    and with how fast the folder of a tier that is to be tried is."""
    tier = facts.tier
    return msgspec.structs.replace(
        facts,
        kv_dtype=told.get("kv_dtype"),
        kv_tokens=whole_number(told.get("kv_tokens")),
        kv_token_bytes=whole_number(told.get("kv_token_bytes")),
        kv_codecs=codecs_told(told),
        blending=blending_told(told),
        disk_rates=await asyncio.to_thread(disk_rates, tier.folder) if tier.kind == "disk" else None,
        chunks=await chunks_seen(arm, cast(Engine, facts.engine), facts.model, items, facts.records),
    )


async def chunks_seen(
    arm: Arm, engine: Engine, model: str, items: Sequence[Item], records: Sequence[ClientRecord]
) -> dict[str, ChunksSeen]:
    """By item, of those that have chunks and whose prompts' token ids are known. Those of which a chunk is not found are left
    out."""
    with_chunks = {item.id: item for item in items if item.chunks}
    prompts = {
        record.item_id: record.server.prompt_ids
        for record in records
        if record.item_id in with_chunks and record.server is not None and record.server.prompt_ids is not None
    }
    known: dict[str, tuple[int, ...] | None] = {}
    if prompts:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_S), headers=arm.headers) as session:
            for text in dict.fromkeys(chunk for name in prompts for chunk in with_chunks[name].chunks):
                known[text] = await token_ids(session, arm.url, engine, model, text)
    found = {name: _seen(with_chunks[name].chunks, known, prompt) for name, prompt in prompts.items()}
    return {name: seen for name, seen in found.items() if seen is not None}


def _seen(
    chunks: Sequence[str], known: Mapping[str, tuple[int, ...] | None], prompt: Sequence[int]
) -> ChunksSeen | None:
    spans: list[tuple[int, int]] = []
    for text in chunks:
        ids = known.get(text)
        span = None if not ids else _span(prompt, ids)
        if span is None:
            return None
        spans.append(span)
    return ChunksSeen(
        texts=tuple(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] for text in chunks),
        tokens=tuple(end - first for first, end in spans),
        first=min(first for first, _ in spans),
        behind=max(end for _, end in spans),
    )


def _span(prompt: Sequence[int], ids: Sequence[int]) -> tuple[int, int] | None:
    """Where the chunk stands, its edges counted in: what the server leaves out of it there is computed with the rest."""
    edge = _EDGE if len(ids) > 2 * _EDGE else 0
    core = tuple(ids[edge : len(ids) - edge])
    for first in range(len(prompt) - len(core) + 1):
        if prompt[first] == core[0] and tuple(prompt[first : first + len(core)]) == core:
            return max(0, first - edge), min(len(prompt), first + len(core) + edge)
    return None
