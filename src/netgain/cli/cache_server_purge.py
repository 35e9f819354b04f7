"""Making a running server forget: its device, its memory and its tiers, over its operators' route."""

import asyncio
import os

import aiohttp
import msgspec
from rich.console import Console

from netgain.cost.quantity import write_size
from netgain.measuring.client.endpoint import base_url
from netgain.wording import count

_PATIENCE_S = 660.0  # every header in a large bucket is read


class TierPurged(msgspec.Struct, frozen=True, kw_only=True):
    looked_at: int
    removed: int
    bytes: int
    unknown: int
    failed: str | None


class StorePurged(msgspec.Struct, frozen=True, kw_only=True):
    destroyed_keys: int
    queued: int
    tiers: dict[str, TierPurged]
    failed: str | None


class EnginePurged(msgspec.Struct, frozen=True, kw_only=True):
    """`failed`: the engine did nothing, and why."""

    device_blocks: int | None = None
    chunks: int | None = None
    store: StorePurged | None = None
    failed: str | None = None

    @property
    def faults(self) -> list[str]:
        store = self.store
        if store is None:
            return [self.failed] if self.failed else []
        tiers = [f"{name}: {tier.failed}" for name, tier in store.tiers.items() if tier.failed]
        return [*([store.failed] if store.failed else []), *tiers]


class ServerPurged(msgspec.Struct, kw_only=True):
    """What each engine of a server forgot. `failed` says why not everything was done, None that it was."""

    location: str
    engines: dict[str, EnginePurged] = {}
    failed: str | None = None


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


class _Answer(msgspec.Struct):
    engines: dict[str, EnginePurged]


def purge_server(location: str, tenant: str | None) -> ServerPurged:
    """Forget a tenant, or everything (None). Raises UsageError for what is no address. NETGAIN_API_KEY, an operator's, is sent
    where it is set."""
    url = base_url(location)
    key = os.environ.get("NETGAIN_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    query = {"all": "true"} if tenant is None else {"tenant": tenant}
    try:
        status, body = asyncio.run(_post(f"{url}/netgain/cache/purge", query, headers))
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return ServerPurged(location=url, failed=f"does not answer: {error or type(error).__name__}")
    try:
        if status != 200:
            said = msgspec.json.decode(body, type=_Refusal).error.message
            hint = " (set NETGAIN_API_KEY to an operator's key)" if status in (401, 403) else ""
            return ServerPurged(location=url, failed=f"refused with {status}: {said}{hint}")
        engines = msgspec.json.decode(body, type=_Answer).engines
    except msgspec.DecodeError:
        return ServerPurged(location=url, failed=f"answered with {status} and not as netgain does")
    faults = [f"{name}: {fault}" for name, engine in engines.items() for fault in engine.faults]
    return ServerPurged(location=url, engines=engines, failed="; ".join(faults) or None)


def show_server_purged(purged: ServerPurged, console: Console) -> None:
    for name, engine in purged.engines.items():
        if engine.device_blocks is None:
            continue
        line = f"{purged.location} {name}: {count(engine.device_blocks, 'block')} on the device"
        if engine.chunks:
            line += f", {count(engine.chunks, 'chunk')} in memory"
        if engine.store is not None:
            line += f", {engine.store.queued} on their way, {count(engine.store.destroyed_keys, 'key')} destroyed"
            for tier, one in engine.store.tiers.items():
                line += f"; {tier}: {one.removed} of {count(one.looked_at, 'object')} removed, {write_size(one.bytes)}"
                if one.unknown:
                    line += f", {one.unknown} sealed with keys that it has not"
        console.print(line, markup=False)
    if purged.failed is not None:
        console.print(f"{purged.location}: {purged.failed}", markup=False)


async def _post(url: str, query: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE_S, connect=10.0), headers=headers)
    async with session, session.post(url, params=query) as response:
        return response.status, await response.read()
