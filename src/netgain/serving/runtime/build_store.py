"""Opens the tiers of an engine as one store, with the thread that its work runs on."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from netgain.ledger.clock import Clock
from netgain.serving.engine.kv_load import TieringOptions
from netgain.serving.runtime.build_tiers import OWN, build_tiers, check_room, written_back
from netgain.serving.runtime.kv_settings import KVTierSettings
from netgain.serving.runtime.tier_specs import TierSpec, parse_tier
from netgain.serving.tiers.admission import RULES
from netgain.serving.tiers.codecs.coder import Coder
from netgain.serving.tiers.envelope import Envelope
from netgain.serving.tiers.inventory import keep_clean, outdated
from netgain.serving.tiers.kv_store import KVStore
from netgain.serving.tiers.object import Seal, Shape
from netgain.serving.tiers.planes import Plane, expected, object_bytes
from netgain.serving.tiers.runner import OwnThread, Runner
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import TierOptions

SWEEP_EVERY_S = 600.0


class TierStore(NamedTuple):
    """`store` is called on the loop of `runner` alone. Whoever made them closes them."""

    store: KVStore
    runner: Runner


def build_store(
    settings: KVTierSettings,
    planes: Sequence[Plane],
    clock: Clock,
    coder: Coder | None = None,
    others: Mapping[str, Shape] | None = None,
) -> TierStore:
    """`planes` are those of blocks, `others` the shapes of what else is kept there. Raises UsageError or Unavailable for a tier
    that cannot be had here; a server that does not answer is no reason."""
    specs = [_forgetting(parse_tier(tier), settings.retention_s) for tier in settings.tiers]
    envelope: Envelope | None = None
    destroyed: Callable[[Seal], bool] | None = None
    if settings.vault is not None:
        from netgain.serving.tiers.vault import Vault  # an extra

        envelope = vault = Vault(Path(settings.vault).expanduser())
        destroyed = vault.is_destroyed
    wanted = expected(planes, coder, others, sealed=settings.vault is not None)
    exchange = TierOptions(
        timeout_s=settings.timeout_s,
        group=TieringOptions().group,
        retention_s=settings.retention_s,
        object_bytes=max(object_bytes(planes)),
    )
    check_room(specs, object_bytes(planes))
    back = written_back(specs)
    tiers = build_tiers(specs, clock, wanted, exchange)
    admissions = [None if (rule := RULES[spec.admit]) is None else rule() for spec in specs]
    stack = Stack(tiers, clock, settings.queue_bytes, back)
    store = KVStore(stack, planes, clock, envelope, coder, admissions)
    runner = OwnThread()
    runner.start(store.begin())
    if destroyed is not None or settings.retention_s is not None:
        # reading every header of a bucket costs money; servers and buckets forget by themselves
        swept = [tier for tier, spec in zip(tiers, specs, strict=True) if spec.kind in OWN]
        condemned = outdated(settings.retention_s, destroyed, time.time)
        runner.start(keep_clean(swept, condemned, clock, SWEEP_EVERY_S))
    return TierStore(store, runner)


def _forgetting(spec: TierSpec, retention_s: float | None) -> TierSpec:
    """A server that forgets no later than KV may be kept."""
    if retention_s is None:
        return spec
    return msgspec.structs.replace(spec, ttl_s=retention_s if spec.ttl_s is None else min(spec.ttl_s, retention_s))
