"""Finds out, before the clock runs, what is being measured and what it accepts: model, engine, version, request fields."""

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec

from netgain.errors import Unavailable, UsageError
from netgain.measuring.client.endpoint import base_url, list_models
from netgain.measuring.client.extent import Extent
from netgain.measuring.client.options import Options
from netgain.measuring.client.record import ClientRecord, ErrorKind
from netgain.measuring.client.run import run
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.identity import changes, identify
from netgain.measuring.measurement.result import Server
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item

PROBES = 3
SETTLE_S = 60.0  # a server that answers no single request for so long after its load is gone
GONE_S = 3.0  # the same where nobody listens at its port
_SALTED = ("netgain", "vllm", "sglang")  # those that know cache_salt


class Met(msgspec.Struct, frozen=True, kw_only=True):
    """A server that answered. `probes`: single requests sent before the measurement, the first possibly cold.

    `metrics_url`: None when nothing is to be scraped. `options`: what it accepts. `notes`: what it refused, for the caveats.
    """

    server: Server
    base: str
    metrics_url: str | None
    options: Options
    probes: tuple[ClientRecord, ...]
    notes: tuple[str, ...] = ()

    @property
    def unloaded_s(self) -> float:
        """Seconds that a request takes alone: the quickest probe, since the first ones may find a cold server."""
        return min(record.finished_s - record.sent_s for record in self.probes)


def introduced(server: Server) -> str:
    """Which model on which engine, in words."""
    if server.engine is None:
        return f"{server.model} on an engine that does not say its name"
    return f"{server.model} on {server.engine} {server.version or '(version unknown)'}"


class Greeted(msgspec.Struct, frozen=True, kw_only=True):
    """A server that said what it serves, before any prompt was sent."""

    server: Server
    base: str
    metrics_url: str | None


async def greet(ask: Ask) -> Greeted:
    """Raises Unavailable when the server does not answer, and UsageError when it has no such model."""
    base = base_url(ask.url)
    metrics_url = None if ask.metrics == "none" else ask.metrics or f"{base}/metrics"
    async with aiohttp.ClientSession(headers=ask.headers) as session:
        cards = await list_models(session, base)
        names = [card.id for card in cards]
        if not names:
            raise Unavailable(f"{base} offers no model")
        if ask.model is not None and ask.model not in names:
            raise UsageError(f"{base} has no model {ask.model!r}; it offers {', '.join(names[:8])}")
        model = ask.model or names[0]
        card = next(card for card in cards if card.id == model)
        server = await identify(session, base, metrics_url, card, model)
    return Greeted(server=server, base=base, metrics_url=metrics_url)


async def meet(ask: Ask, items: Sequence[Item], greeted: Greeted | None = None) -> Met:
    """Send a few single requests. Raises Unavailable when the server does not answer, and UsageError when it refuses what is
    asked."""
    greeted = greeted or await greet(ask)
    engine = greeted.server.engine
    salt = f"netgain-{ask.seed}" if engine in _SALTED and not ask.reuse_prefixes else None
    options = Options(
        timeout_s=ask.timeout_s,
        budget=ask.client,
        headers=ask.headers,
        server_record=engine == "netgain",
        salt=salt,
        running_usage=True,
    )
    return await _probe(greeted.server, greeted.base, greeted.metrics_url, options, items)


async def changed(met: Met) -> tuple[str, ...] | None:
    """How the server is no longer the one that was met: see Measurement.restarts. Asked after the load."""
    assert met.server.model is not None
    async with aiohttp.ClientSession(headers=met.options.headers) as session:
        try:
            cards = await list_models(session, met.base)
        except Unavailable as error:
            return (f"it could not be asked after the load: {error}",)
        card = next((card for card in cards if card.id == met.server.model), None)
        if card is None:
            return (f"it no longer offers {met.server.model}",)
        return changes(met.server, await identify(session, met.base, met.metrics_url, card, met.server.model))


async def _probe(server: Server, base: str, metrics_url: str | None, options: Options, items: Sequence[Item]) -> Met:
    """Single requests, with fewer wishes where the server refuses some. They are the workload's last ones, which are measured
    last: on an engine without cache_salt they find their own KV then."""
    assert server.model is not None
    notes: list[str] = []
    while True:
        first = await _one(base, server.model, items[-min(PROBES, len(items))], options, "first")
        if first.ok:
            break
        if first.error_kind is not ErrorKind.HTTP or first.status not in (400, 422):
            raise Unavailable(f"the server did not answer a first request: {first.error}")
        if options.running_usage:
            options = msgspec.structs.replace(options, running_usage=False)
            notes.append("The server refused running token counts (continuous_usage_stats); counts are its final ones.")
        elif options.salt is not None:
            options = msgspec.structs.replace(options, salt=None)
            notes.append("The server refused cache_salt, so prompts that are sent again may find their own KV.")
        else:
            raise UsageError(f"the server refuses the workload's first request: {first.error}")
    others = await _alone(base, server.model, items[:-PROBES:-1] or items, options, "probe", PROBES - 1)
    if any(record.resent for record in others):
        options = msgspec.structs.replace(options, reuse_connections=False)
        notes.append("The server closes a connection after its answer, so every request opened one of its own.")
    return Met(
        server=server,
        base=base,
        metrics_url=metrics_url,
        options=options,
        probes=(first, *(record for record in others if record.ok)),
        notes=tuple(notes),
    )


async def settle(met: Met, item: Item, patience_s: float = SETTLE_S) -> bool | None:
    """Wait until a single request is answered about as quickly as before any load: what was cancelled may still be computed.

    Returns whether it was within `patience_s`; None: the server is gone, since nobody listens any more, or since a patience of
    SETTLE_S saw no answer at all.
    """
    assert met.server.model is not None
    before_s = min((record.ttft_s or 0.0) for record in met.probes)
    short = msgspec.structs.replace(item, max_tokens=1)
    options = msgspec.structs.replace(met.options, timeout_s=patience_s)
    began = asyncio.get_running_loop().time()
    for attempt in range(1000):
        seen = await _one(met.base, met.server.model, short, options, f"settle-{began:.3f}-{attempt}")
        if seen.ok and seen.ttft_s is not None and seen.ttft_s <= 2.0 * before_s + 0.05:
            return True
        waited_s = asyncio.get_running_loop().time() - began
        if seen.error_kind is ErrorKind.CONNECT and waited_s > GONE_S:
            return None
        if waited_s > patience_s:
            return False if seen.ok or patience_s < SETTLE_S else None
        await asyncio.sleep(0.25)
    return False


async def _one(base: str, model: str, item: Item, options: Options, salt: str) -> ClientRecord:
    return (await _alone(base, model, [item], options, salt, 1))[0]


async def _alone(
    base: str, model: str, items: Sequence[Item], options: Options, salt: str, requests: int
) -> tuple[ClientRecord, ...]:
    """One after another."""
    if options.salt is not None:
        options = msgspec.structs.replace(options, salt=f"{options.salt}-{salt}")
    return (await run(base, model, items, Closed(1), options, extent=Extent(requests=requests))).records
