"""What lies in a tier, by the headers alone: to list and count it, and to remove what may not be there any more."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from netgain.ledger.clock import Clock
from netgain.serving.tiers.medium import Data
from netgain.serving.tiers.object import Head, Reason, Refused, Seal, StoredObject, check_age, unpack, unpack_head
from netgain.serving.tiers.tier import Tier

Read = Callable[[Sequence[bytes]], Awaitable[list[Data | None] | None]]

_GROUP = 256  # objects whose headers are held at once
_WHOLE = 16  # that are held whole


class Found(msgspec.Struct, frozen=True):
    """An object by its header, or why there is none to be read under that address."""

    address: bytes
    head: Head | None
    refused: Reason | None = None


class Silent(Exception):
    """The tier did not say what it has, or did not do what it was asked."""


class Swept(msgspec.Struct, frozen=True):
    """`looked_at` objects, of which `removed` were, of so many bytes by their headers."""

    looked_at: int
    removed: int
    bytes: int


async def walk(tier: Tier) -> AsyncIterator[Found]:
    """Everything that the tier has, in any order. Raises Silent."""
    async for address, data in _objects(tier, tier.heads, _GROUP):
        try:
            head = unpack_head(data)
        except Refused as why:
            yield Found(address, None, why.reason)
        else:
            wrong = head.stored.part.address() != address
            yield Found(address, None if wrong else head, Reason.WRONG_KEY if wrong else None)


async def verify(tier: Tier, check: Callable[[StoredObject], None]) -> AsyncIterator[Found]:
    """Everything that the tier has, read whole and checked, also by `check`, which raises Refused. Raises Silent."""
    async for address, data in _objects(tier, tier.peek, _WHOLE):
        try:
            check(unpack(data, address))
        except Refused as why:
            yield Found(address, None, why.reason)
        else:
            yield Found(address, unpack_head(data))


async def _objects(tier: Tier, read: Read, group: int) -> AsyncIterator[tuple[bytes, Data]]:
    """What `read` gives of every key that the tier has, `group` keys at a time, without those that went meanwhile."""
    async for page in tier.pages():
        if page is None:
            raise Silent("it did not say what it has")
        for start in range(0, len(page), group):
            asked = page[start : start + group]
            found = await read(asked)
            if found is None:
                raise Silent("its objects cannot be read")
            for address, data in zip(asked, found, strict=True):
                if data is not None:
                    yield address, data


async def sweep(tier: Tier, condemned: Callable[[Found], bool]) -> Swept:
    """Remove what is condemned. Raises Silent; what was removed by then stays removed."""
    looked_at = removed = size = 0
    waiting: list[bytes] = []

    async def remove() -> None:
        nonlocal removed
        gone = await tier.delete(waiting)
        if gone is None:
            raise Silent("it could not remove what it was asked to")
        removed += gone
        waiting.clear()

    async for found in walk(tier):
        looked_at += 1
        if condemned(found):
            size += 0 if found.head is None else found.head.bytes
            waiting.append(found.address)
            if len(waiting) >= _GROUP:
                await remove()
    await remove()
    return Swept(looked_at, removed, size)


def outdated(
    retention_s: float | None, destroyed: Callable[[Seal], bool] | None, unix_s: Callable[[], float]
) -> Callable[[Found], bool]:
    """Whether an object is older than it may be, or sealed with a key that was `destroyed` (see Vault.is_destroyed)."""

    def condemned(found: Found) -> bool:
        if found.head is None:
            return False
        stored = found.head.stored
        if destroyed is not None and stored.seal is not None and destroyed(stored.seal):
            return True
        try:
            check_age(stored, retention_s, unix_s())
        except Refused:
            return True
        return False

    return condemned


async def keep_clean(tiers: Sequence[Tier], condemned: Callable[[Found], bool], clock: Clock, every_s: float) -> None:
    """Sweep the tiers now and every so often, until cancelled: what is never asked for again would stay for ever otherwise.
    A tier that is silent is tried again the next time."""
    while True:
        for tier in tiers:
            if tier.usable:
                await asyncio.gather(sweep(tier, condemned), return_exceptions=True)
        await clock.sleep(every_s)
