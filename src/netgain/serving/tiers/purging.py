"""Making the tiers of a running engine forget tenants: keys first, then what is queued, then what is kept."""

import msgspec

from netgain.errors import UsageError
from netgain.serving.blocks.scope import Tenants
from netgain.serving.tiers.envelope import Envelope
from netgain.serving.tiers.inventory import Found, Silent, sweep
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import Tier


class TierPurged(msgspec.Struct, frozen=True, kw_only=True):
    """Of one tier; `failed` says why not everything was done, None that it was. `unknown` objects are sealed with keys that are
    not here, so whose they are is not known."""

    looked_at: int = 0
    removed: int = 0
    bytes: int = 0
    unknown: int = 0
    failed: str | None = None


class StorePurged(msgspec.Struct, frozen=True, kw_only=True):
    """`destroyed_keys` of the vault, `queued` objects that were on their way, and what became of each tier. `failed`: why keys
    could not be destroyed; the rest was done."""

    destroyed_keys: int = 0
    queued: int = 0
    tiers: dict[str, TierPurged] = {}
    failed: str | None = None


async def purge(stack: Stack, envelope: Envelope, tenants: Tenants) -> StorePurged:
    """Called on the stack's event loop. Waits for nothing before keys are destroyed, nor for loads at any time: what these bring
    of what is purged is given to nobody, whether they began before or end after it."""
    keys, failed = 0, None
    try:
        keys = envelope.forget(tenants)
    except UsageError as error:
        failed = str(error)
    tiers = {}
    async with stack.purging(lambda stored: envelope.is_of(stored, tenants) is True) as queued:
        for tier in stack.tiers:
            tiers[tier.name] = await _purge(tier, envelope, tenants)
    return StorePurged(destroyed_keys=keys, queued=queued, tiers=tiers, failed=failed)


async def _purge(tier: Tier, envelope: Envelope, tenants: Tenants) -> TierPurged:
    unknown = 0

    def judge(found: Found) -> bool:
        nonlocal unknown
        if found.head is None:
            return tenants is None
        theirs = envelope.is_of(found.head.stored, tenants)
        unknown += theirs is None
        return theirs is True

    try:
        swept = await sweep(tier, judge)
    except Silent as silent:
        return TierPurged(unknown=unknown, failed=str(silent))
    return TierPurged(looked_at=swept.looked_at, removed=swept.removed, bytes=swept.bytes, unknown=unknown)
