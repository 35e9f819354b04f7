"""The exchanges with tiers, which run elsewhere and post what came of them. None of them raises."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from netgain.serving.engine.kv_load import Load, TieringOptions
from netgain.serving.engine.mailbox import Mailbox
from netgain.serving.tiers.kv_store import KVStore, Loaded, Located
from netgain.serving.tiers.layered import LayersLoaded

T = TypeVar("T")
_log = logging.getLogger(__name__)
_ASKED = 0.9  # of the time that a request waits: what is known by then reaches it in time
_LATE = 0.999  # of the time for asking


async def locate(
    store: KVStore, load: Load, wait_s: float, mailbox: Mailbox, located: Callable[[Load, Located | None, float], None]
) -> None:
    """Where the blocks of `load` are, as far as the tiers say while it is waited for; None where that could not be found out.
    Nothing is posted when they said nothing by then: that is no answer."""
    within_s = _ASKED * wait_s
    found = await _harmless(store.locate(load.keys, within_s))
    if found is None or found.seconds < _LATE * within_s or None not in found.places[:1]:
        mailbox.post(partial(located, load, found))


async def fetch(
    store: KVStore,
    load: Load,
    first: int,
    learns: bool,
    options: TieringOptions,
    mailbox: Mailbox,
    arrived: Callable[[Load, int, Loaded | None, float], None],
    layers_arrived: Callable[[Load, int, LayersLoaded | None, float], None],
) -> None:
    """The blocks from the one numbered `first` on, group by group, until something is missing or nothing more is wanted; those of
    the tail, if there is one, by layers."""
    tail, root, end = load.tail, load.generation.chain.root, load.end

    async def whole(first: int, until: int, learns: bool = False) -> bool:
        """Whether all came that was wanted."""
        while first < until and not load.cancelled:
            # what a link costs is learnt from one block: its size against that of the groups tells latency from bandwidth
            count = 1 if learns else min(options.group, until - first)
            learns = False
            loaded = await _harmless(store.load(root, load.keys[first : first + count], options.load_s))
            mailbox.post(partial(arrived, load, first, loaded))
            if loaded is None or None in loaded.blocks:
                return False
            first += count
        return not load.cancelled

    if tail is None:
        await whole(first, end, learns)
        return
    if not await whole(first, tail.first):
        return
    blocks = store.by_layers(root, load.keys[tail.first : end], tail.starts)
    for group in range(tail.groups):
        layers = await _harmless(blocks.load(group, options.load_s))
        if group == 0 and layers is not None and not layers.complete:
            # coded by others, say: of use only whole; or some are missing, and those before them are used
            mailbox.post(partial(_without_tail, load))
            await whole(tail.first, end)
            return
        mailbox.post(partial(layers_arrived, load, tail.first, layers))
        if layers is None or not layers.complete or load.cancelled:
            return


def _without_tail(load: Load, now_s: float) -> None:
    load.tail = None


async def probe(store: KVStore, root: bytes, keys: Sequence[bytes], options: TieringOptions) -> None:
    """Read, for nothing but the link's sake."""
    await _harmless(store.load(root, keys, options.load_s))


async def end(store: KVStore, within_s: float) -> None:
    """Store what is queued, and what ends with this process where a tier is written back, as far as that can be done in time; and
    close the tiers."""
    try:
        async with asyncio.timeout(within_s):
            await store.settle()
            await store.hand_down()
    except TimeoutError:
        _log.warning("KV that was still to be stored is lost: the tiers did not take it in time")
    await store.close()


async def _harmless(exchange: "Awaitable[T]") -> T | None:
    try:
        return await exchange
    except Exception:
        _log.exception("an exchange with the KV tiers failed")
        return None
