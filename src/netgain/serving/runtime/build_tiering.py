"""What decides about KV tiers, from its settings."""

from collections.abc import Callable, Sequence

from netgain.ledger.clock import Clock
from netgain.ledger.collector import Collector
from netgain.serving.engine.kv_load import TieringOptions
from netgain.serving.engine.prefill_cost import PrefillCost
from netgain.serving.engine.protocols import BlockMemory
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.tiering import Tiering
from netgain.serving.runtime.build_store import TierStore
from netgain.serving.runtime.kv_settings import KVTierSettings


def build_tiering(
    settings: KVTierSettings,
    tiers: TierStore,
    memory: BlockMemory,
    scheduler: Scheduler,
    clock: Clock,
    collector: Collector,
    cost: PrefillCost,
    rewritten: Callable[[Sequence[int]], None] | None = None,
) -> Tiering:
    """`tiers` are its own from here on."""
    options = TieringOptions(
        policy=settings.policy,
        lookup_s=settings.lookup_s,
        load_s=settings.load_s,
        ahead_bytes=settings.ahead_bytes,
        room_bytes=settings.queue_bytes,
        copy_bytes=settings.copy_bytes,
        close_s=settings.close_s,
        pin_s=settings.pin_s,
        layer_groups=settings.layer_groups,
    )
    return Tiering(
        tiers.store,
        memory,
        scheduler,
        clock,
        collector,
        tiers.runner,
        cost,
        options,
        rewritten or (lambda blocks: None),
    )
