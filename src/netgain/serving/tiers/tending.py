"""What is done for tiers when an engine starts, beside its requests."""

import asyncio
import logging

from netgain.serving.tiers.lane import Lane
from netgain.serving.tiers.medium import Fault
from netgain.serving.tiers.tier import Tier

_log = logging.getLogger(__name__)
_CALL_S = 30.0
_PATIENCE_S = 60  # with a tier that is left alone, before what it should have got is lost


async def begin(tier: Tier) -> None:
    """Start what its medium does in the background, and say in the log what in its settings works against keeping KV there."""
    tier.medium.begin()
    for notice in await notices(tier) or ():
        _log.warning("tier %s: %s", tier.name, notice)


async def notices(tier: Tier) -> tuple[str, ...] | None:
    """See Medium; None when it did not say."""
    try:
        async with asyncio.timeout(_CALL_S):
            found = await tier.medium.notices()
    except (Fault, TimeoutError):
        return None
    tier.notices = len(found)
    return found


async def shed(upper: Tier, below: Lane) -> bool:
    """Have `upper` hand down some of what was over its capacity at the start, once the queue below has room; whether there is
    more."""
    for _ in range(_PATIENCE_S):
        if below.tier.usable:
            break
        await asyncio.sleep(1.0)
    if below.bytes + below.coming > below.room // 4:
        await below.settle()
    try:
        return await upper.medium.shed()
    except Fault as fault:
        _log.warning("tier %s is over its capacity and cannot be made smaller: %s", upper.name, fault)
        return False
