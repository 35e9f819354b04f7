"""What tiers tell of themselves, as counters for metrics."""

from collections.abc import Mapping, Sequence

import msgspec

from netgain.serving.tiers.codecs.coder import CoderStats
from netgain.serving.tiers.medium import FaultKind, PinUse
from netgain.serving.tiers.object import Reason
from netgain.serving.tiers.stack import StackStats

NO_ROOM = "queue_full"  # beside the FaultKinds
COUNTED = (  # each from 0, so that whoever reads them knows of the first time
    "kv_lookups",
    "kv_lookups_hit",
    "kv_lookups_skipped",
    "kv_lookups_late",
    "kv_lookup_tokens",
    "kv_found_tokens",
    "kv_loaded_tokens",
    "kv_wasted_tokens",
    "kv_wasted_bytes",
    "kv_recompute_chosen",
    "kv_loads",
    "kv_loads_failed",
    "kv_loads_cut",
    "kv_overlaps",
    "kv_overlaps_late",
    "kv_probes",
)


def named_counters(stats: StackStats, coded: Sequence[CoderStats] = ()) -> Mapping[str, float]:
    """Flat, `name/tier`, `name/tier/reason` and, where something may be coded, `name/tier/codec`; what is not known is left
    out."""
    named: dict[str, float] = {}
    for tier, dropped, promoted, demoted, queued in zip(
        stats.tiers, stats.dropped, stats.promoted, stats.demoted, stats.queued_bytes, strict=True
    ):
        values: dict[str, float | None] = {
            "tier_hits": tier.hits,
            "tier_misses": tier.misses,
            "tier_loaded_bytes": tier.loaded.bytes,
            "tier_loaded_s": tier.loaded.seconds,
            "tier_stored_bytes": tier.stored.bytes,
            "tier_stored_s": tier.stored.seconds,
            "tier_refused": sum(tier.refused.values()),
            "tier_unread": sum(tier.unread.values()),
            "tier_unwritten": sum(tier.unwritten.values()) + dropped,
            "tier_evictions": tier.usage.evictions,
            "tier_promoted": promoted,
            **_pins(tier.usage.pins),
            "tier_demoted": demoted,
            "tier_breaker_opened": tier.breaker_opened,
            "tier_bytes": tier.usage.bytes,
            "tier_capacity_bytes": tier.usage.capacity_bytes,
            "tier_notices": tier.notices,
            "tier_queued_bytes": queued,
            "tier_broken": float(tier.breaker != "closed"),
            "tier_load_p95_s": tier.loaded.p95_s,
            "tier_load_p99_s": tier.loaded.p99_s,
            "tier_store_p95_s": tier.stored.p95_s,
            "tier_store_p99_s": tier.stored.p99_s,
        }
        if tier.loaded.link is not None:
            values["tier_load_latency_s"] = tier.loaded.link.latency_s
            values["tier_load_bytes_per_s"] = tier.loaded.link.bytes_per_s
            values["tier_load_error"] = tier.loaded.link.error
        named.update({f"{name}/{tier.name}": value for name, value in values.items() if value is not None})
        for reason in Reason:  # each from 0
            named[f"refused/{tier.name}/{reason}"] = tier.refused.get(reason, 0)
        for kind in FaultKind:
            named[f"unread/{tier.name}/{kind}"] = tier.unread.get(kind, 0)
            named[f"unwritten/{tier.name}/{kind}"] = tier.unwritten.get(kind, 0)
        named[f"unwritten/{tier.name}/{NO_ROOM}"] = dropped
    for tier, codecs in zip(stats.tiers, coded, strict=False):
        for name, by_codec in msgspec.structs.asdict(codecs).items():
            named.update({f"codec_{name}/{tier.name}/{codec}": value for codec, value in by_codec.items()})
    return named


def _pins(pins: PinUse | None) -> dict[str, float | None]:
    if pins is None:
        return {}
    return {
        "tier_pinned_bytes": pins.bytes,
        "tier_pins_refused": pins.refused,
        "tier_pins_taken_back": pins.taken_back,
    }
