"""Asks a running server to forget what its caches hold, by each engine's own route, and says what it answered.

An answer is no proof: vLLM says 200 also when it refuses, and llama.cpp keeps a second cache. `cold.py` looks at the counters.
"""

from collections.abc import Mapping
from http import HTTPStatus

import aiohttp
import msgspec

from netgain.measuring.observe.names import Engine

TIMEOUT_S = 30.0


class Reset(msgspec.Struct, frozen=True):
    """`accepted`: whether the server said that it did it; None where there is nothing to ask for. `says`: in words."""

    accepted: bool | None
    says: str


async def ask_reset(url: str, headers: Mapping[str, str], engine: Engine | None) -> Reset:
    """`headers`: such as an API key. Never raises: a server that does not answer is a failure of its next block."""
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            match engine:
                case "vllm":
                    return await _vllm(session, url)
                case "sglang":
                    return await _sglang(session, url)
                case "llama.cpp":
                    return await _llama_cpp(session, url)
                case "netgain":
                    return Reset(None, "every block asks under a cache salt of its own")
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return Reset(False, f"the server could not be asked to reset its cache ({error!r})")
    return Reset(None, "no way is known to reset the cache of this server")


async def _vllm(session: aiohttp.ClientSession, url: str) -> Reset:
    """Newer servers say whether they did it in the body; older ones answer 200 and an empty body either way."""
    async with session.post(f"{url}/reset_prefix_cache") as response:
        body = await response.read()
    if response.status == HTTPStatus.NOT_FOUND:
        return Reset(False, "vLLM has no /reset_prefix_cache (it needs VLLM_SERVER_DEV_MODE=1)")
    if response.status != HTTPStatus.OK:
        return Reset(False, f"vLLM's /reset_prefix_cache answered {response.status}")
    try:
        told = msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, RecursionError):
        told = None
    if isinstance(told, dict) and told.get("success") is False:
        return Reset(False, "vLLM refused to reset its prefix cache (blocks are still held)")
    if isinstance(told, dict) and told.get("success") is True:
        return Reset(True, "prefix cache reset by /reset_prefix_cache")
    return Reset(True, "vLLM's /reset_prefix_cache answered 200, as it also does when it refuses")


async def _sglang(session: aiohttp.ClientSession, url: str) -> Reset:
    """python/sglang/srt/entrypoints/http_server.py: 200 when done, 400 while requests run."""
    async with session.post(f"{url}/flush_cache") as response:
        body = (await response.read())[:200].decode(errors="replace").strip()
    if response.status == HTTPStatus.OK:
        return Reset(True, "cache flushed by /flush_cache")
    return Reset(False, f"SGLang's /flush_cache answered {response.status}: {body}")


async def slots_told(url: str, headers: Mapping[str, str] | None = None) -> int | None:
    """How many prompts llama.cpp keeps side by side; None where no such thing is told."""
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
            slots = await _slots(session, url)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
    return None if isinstance(slots, Reset) else len(slots)


async def _slots(session: aiohttp.ClientSession, url: str) -> list[object] | Reset:
    """Their ids, or why they are not known."""
    async with session.get(f"{url}/slots") as response:
        body = await response.read()
    if response.status != HTTPStatus.OK:
        return Reset(False, f"llama.cpp's /slots answered {response.status} (it must not be started with --no-slots)")
    try:
        return [slot["id"] for slot in msgspec.json.decode(body, type=list[dict[str, object]])]
    except (msgspec.MsgspecError, KeyError, RecursionError):
        return Reset(False, "llama.cpp's /slots did not answer with a list of slots")


async def _llama_cpp(session: aiohttp.ClientSession, url: str) -> Reset:
    slots = await _slots(session, url)
    if isinstance(slots, Reset):
        return slots
    for slot in slots:
        async with session.post(f"{url}/slots/{slot}?action=erase") as response:
            body = (await response.read())[:200]
        if response.status != HTTPStatus.OK:
            told = body.decode(errors="replace").strip()
            return Reset(False, f"llama.cpp did not erase slot {slot} ({response.status}: {told})")
    return Reset(True, f"all {len(slots)} slots erased")
