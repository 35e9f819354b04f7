"""Puts KV tiers together: media, their thread, and what decides about them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from netgain.ledger.clock import Clock
from netgain.ledger.collector import Collector
from netgain.serving.engine.kv_load import TieringOptions
from netgain.serving.engine.prefill_cost import PrefillCost
from netgain.serving.engine.protocols import BlockMemory
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.tiering import Tiering
from netgain.serving.runtime.kv_settings import KVTierSettings
from netgain.serving.runtime.tier_specs import build_tiers, parse_tier
from netgain.serving.tiers.envelope import Envelope
from netgain.serving.tiers.kv_store import KVStore, expected
from netgain.serving.tiers.runner import OwnThread
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import TierOptions


def build_tiering(
    settings: KVTierSettings,
    memory: BlockMemory,
    scheduler: Scheduler,
    clock: Clock,
    collector: Collector,
    cost: PrefillCost,
    rewritten: Callable[[Sequence[int]], None] | None = None,
) -> Tiering:
    """Raises UsageError or Unavailable for a tier that cannot be had here; a server that does not answer is no reason."""
    options = TieringOptions(
        policy=settings.policy,
        lookup_s=settings.lookup_s,
        load_s=settings.load_s,
        ahead_bytes=settings.ahead_bytes,
        room_bytes=settings.queue_bytes,
        close_s=settings.close_s,
    )
    specs = [parse_tier(tier) for tier in settings.tiers]
    envelope: Envelope | None = None
    if settings.vault is not None:
        from netgain.serving.tiers.vault import Vault  # an extra

        envelope = Vault(Path(settings.vault).expanduser())
    wanted = msgspec.structs.replace(expected(memory.planes), sealed=settings.vault is not None)
    exchange = TierOptions(timeout_s=settings.timeout_s, group=options.group, retention_s=settings.retention_s)
    tiers = build_tiers(specs, clock, wanted, exchange)
    store = KVStore(Stack(tiers, clock, settings.queue_bytes), memory.planes, clock, envelope)
    return Tiering(
        store,
        memory,
        scheduler,
        clock,
        collector,
        OwnThread(),
        cost,
        options,
        rewritten or (lambda blocks: None),
    )
