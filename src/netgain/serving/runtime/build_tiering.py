"""Puts KV tiers together: media, their thread, and what decides about them."""

import time
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
from netgain.serving.runtime.build_tiers import build_tiers
from netgain.serving.runtime.kv_settings import KVTierSettings
from netgain.serving.runtime.tier_specs import TierSpec, parse_tier
from netgain.serving.tiers.codecs.coder import Coder
from netgain.serving.tiers.envelope import Envelope
from netgain.serving.tiers.inventory import keep_clean, outdated
from netgain.serving.tiers.kv_store import KVStore, expected
from netgain.serving.tiers.object import Seal
from netgain.serving.tiers.runner import OwnThread
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import TierOptions

SWEPT = frozenset(
    {"dram", "disk"}
)  # reading every header of a bucket costs money; servers and buckets forget by themselves
SWEEP_EVERY_S = 600.0


def build_tiering(
    settings: KVTierSettings,
    memory: BlockMemory,
    scheduler: Scheduler,
    clock: Clock,
    collector: Collector,
    cost: PrefillCost,
    rewritten: Callable[[Sequence[int]], None] | None = None,
    coder: Coder | None = None,
) -> Tiering:
    """Raises UsageError or Unavailable for a tier that cannot be had here; a server that does not answer is no reason."""
    options = TieringOptions(
        policy=settings.policy,
        lookup_s=settings.lookup_s,
        load_s=settings.load_s,
        ahead_bytes=settings.ahead_bytes,
        room_bytes=settings.queue_bytes,
        close_s=settings.close_s,
        pin_s=settings.pin_s,
        layer_groups=settings.layer_groups,
    )
    specs = [_forgetting(parse_tier(tier), settings.retention_s) for tier in settings.tiers]
    envelope: Envelope | None = None
    destroyed: Callable[[Seal], bool] | None = None
    if settings.vault is not None:
        from netgain.serving.tiers.vault import Vault  # an extra

        envelope = vault = Vault(Path(settings.vault).expanduser())
        destroyed = vault.is_destroyed
    wanted = msgspec.structs.replace(expected(memory.planes, coder), sealed=settings.vault is not None)
    exchange = TierOptions(timeout_s=settings.timeout_s, group=options.group, retention_s=settings.retention_s)
    tiers = build_tiers(specs, clock, wanted, exchange)
    store = KVStore(Stack(tiers, clock, settings.queue_bytes), memory.planes, clock, envelope, coder)
    runner = OwnThread()
    if destroyed is not None or settings.retention_s is not None:
        swept = [tier for tier, spec in zip(tiers, specs, strict=True) if spec.kind in SWEPT]
        condemned = outdated(settings.retention_s, destroyed, time.time)
        runner.start(keep_clean(swept, condemned, clock, SWEEP_EVERY_S))
    return Tiering(
        store,
        memory,
        scheduler,
        clock,
        collector,
        runner,
        cost,
        options,
        rewritten or (lambda blocks: None),
    )


def _forgetting(spec: TierSpec, retention_s: float | None) -> TierSpec:
    """A server that forgets no later than KV may be kept."""
    if retention_s is None:
        return spec
    return msgspec.structs.replace(spec, ttl_s=retention_s if spec.ttl_s is None else min(spec.ttl_s, retention_s))
