"""What one side of one step did, from the requests' own records and from the counters of its server."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from netgain.deciding.kv.asking import Seen
from netgain.deciding.kv.outcome import Decisions, Flow, Hits, Loads, Overhead, RoleFigures, TierFigures
from netgain.deciding.kv.steps import TIERED, Role
from netgain.ledger.records import KVReuse, RequestRecord
from netgain.measuring.client.quantile import is_thin, quantile
from netgain.measuring.observe.window import ServerWindow

P95, P99 = 0.95, 0.99
SLOW = 0.05  # the share of loads that were slower than what is called slow
_PREDICTED = ("load", "compute")  # the decisions that rest on a prediction


def role_figures(role: Role, seen: Sequence[Seen], windows: Sequence[ServerWindow]) -> RoleFigures:
    """`seen`: this role's requests of one step. `windows`: its server's counters over the step, one per repeat."""
    records = [one.record for one in seen]
    good = [record for record in records if record.ok]
    ttft = [value for record in good if (value := record.ttft_s) is not None]
    served = [record.server for record in good if record.server is not None]
    tiered = role.server in TIERED
    return RoleFigures(
        name=role.name,
        server=role.server,
        title=role.title,
        requests=len(records),
        failed=len(records) - len(good),
        ttft_mean_s=_mean(ttft),
        ttft_median_s=statistics.median(ttft) if ttft else None,
        ttft_p95_s=quantile(ttft, P95),
        thin=is_thin(len(ttft), P95),
        e2e_mean_s=_mean([record.e2e_s for record in good]),
        hits=hits(served),
        decisions=decisions(served) if tiered else None,
        loads=loads(served, windows) if tiered else None,
        tiers=tiers(windows) if tiered else (),
        overhead=overhead(served, windows) if tiered else None,
    )


def hits(served: Sequence[RequestRecord]) -> Hits:
    """Of records that tell what was found."""
    known = [(record, record.cached_tokens) for record in served if record.cached_tokens is not None]
    found = [tokens for _, tokens in known]
    prompt = sum(record.prompt_tokens for record, _ in known)
    lengths = Counter(_at_most(tokens) for tokens in found)
    return Hits(
        requests=len(known),
        requests_hit=sum(tokens > 0 for tokens in found),
        requests_hit_beyond=sum(_loaded(record) > 0 for record, _ in known),
        prompt_tokens=prompt,
        found_tokens=sum(found),
        loaded_tokens=sum(_loaded(record) for record, _ in known),
        computed_tokens=prompt - sum(found),
        lengths=tuple(sorted({0: 0, **lengths}.items())),
    )


def decisions(served: Sequence[RequestRecord]) -> Decisions:
    """Of requests for which tiers were asked."""
    kv = _reused(served)
    ratios = [
        one.actual_s / one.warm_s - 1.0
        for one in kv
        if one.why in _PREDICTED and one.actual_s is not None and one.warm_s
    ]
    errors = [abs(ratio) for ratio in ratios]
    return Decisions(
        why=dict(Counter(one.why for one in kv).most_common()),
        loads=sum(one.chosen_tokens > 0 for one in kv),
        recomputes=sum(one.chosen_tokens == 0 and one.found_tokens > 0 for one in kv),
        predicted=len(ratios),
        error=statistics.median(errors) if errors else None,
        worst_error=max(errors, default=None),
        bias=statistics.median(ratios) if ratios else None,
    )


def loads(served: Sequence[RequestRecord], windows: Sequence[ServerWindow]) -> Loads:
    """Of requests whose KV came from a tier."""
    kv = [one for one in _reused(served) if one.loaded_tokens]
    waited = [one.waited_s for one in kv]
    rates = [one.bytes / one.waited_s for one in kv if one.waited_s > 0.0]
    size, waited_s = sum(one.bytes for one in kv), math.fsum(waited)
    used, wasted = _events(windows, "loaded_tokens"), _events(windows, "wasted_tokens")
    return Loads(
        requests=len(kv),
        bytes=size,
        waited_mean_s=_mean(waited),
        waited_p95_s=quantile(waited, P95),
        waited_p99_s=quantile(waited, P99),
        bytes_per_s=size / waited_s if waited_s > 0.0 else None,
        slow_bytes_per_s=quantile(rates, SLOW),
        overlapped=sum(one.overlapped_tokens for one in kv) / sum(one.loaded_tokens for one in kv) if kv else None,
        prefetched_used=used / (used + wasted) if used is not None and wasted is not None and used + wasted else None,
        cut=_events(windows, "loads_cut"),
        failed=_events(windows, "loads_failed"),
    )


def tiers(windows: Sequence[ServerWindow]) -> tuple[TierFigures, ...]:
    """By the tiers' own counters."""
    names = {
        name
        for window in windows
        for delta in window.counters.get("netgain_kv_tier_hits_total", ())
        if (name := dict(delta.labels).get("tier")) is not None
    }
    return tuple(_tier(name, windows) for name in sorted(names))


def overhead(served: Sequence[RequestRecord], windows: Sequence[ServerWindow]) -> Overhead:
    """Per request."""
    count = len(served)

    def each(name: str) -> float | None:
        gained = _gained(windows, name)
        return None if gained is None or not count else gained / count

    kinds = [window.counters.get("netgain_kv_codec_encode_seconds_total", ()) for window in windows]
    return Overhead(
        lookup_s=_mean([one.lookup_s for one in _reused(served) if one.lookup_s is not None]),
        store_s=each("netgain_kv_tier_stored_seconds_total"),
        store_bytes=each("netgain_kv_tier_stored_bytes_total"),
        serialise_s=each("netgain_kv_codec_encode_seconds_total") if any(kinds) else None,
    )


def _tier(name: str, windows: Sequence[ServerWindow]) -> TierFigures:
    def gained(figure: str) -> float | None:
        return _gained(windows, f"netgain_kv_tier_{figure}_total", tier=name)

    def flow(direction: str, exchange: str) -> Flow:
        p95_s, p99_s = (_last(windows, f"netgain_kv_tier_{exchange}_seconds_{share}", name) for share in ("p95", "p99"))
        return Flow(
            bytes=gained(f"{direction}_bytes"), seconds=gained(f"{direction}_seconds"), p95_s=p95_s, p99_s=p99_s
        )

    return TierFigures(
        tier=name,
        reading=flow("loaded", "load"),
        writing=flow("stored", "store"),
        hits=gained("hits"),
        misses=gained("misses"),
        evicted=gained("evictions"),
        promoted=gained("promoted"),
        refused=gained("refused"),
        unread=gained("unread"),
        unwritten=gained("unwritten"),
    )


def _gained(windows: Sequence[ServerWindow], name: str, **labels: str) -> float | None:
    """Over all windows; None where one of them does not tell."""
    values = [window.gained(name, **labels) for window in windows]
    known = [value for value in values if value is not None]
    return math.fsum(known) if known and len(known) == len(values) else None


def _events(windows: Sequence[ServerWindow], name: str) -> int | None:
    """How often something happened, or to how many tokens."""
    gained = _gained(windows, f"netgain_kv_{name}_total")
    return None if gained is None else round(gained)


def _last(windows: Sequence[ServerWindow], name: str, tier: str) -> float | None:
    """The largest value over the repeats of a gauge at the end of its window."""
    found = [
        gauge.most
        for window in windows
        for gauge in window.gauges.get(name, ())
        if dict(gauge.labels).get("tier") == tier
    ]
    return max(found, default=None)


def _reused(served: Sequence[RequestRecord]) -> list[KVReuse]:
    return [record.kv for record in served if record.kv is not None]


def _loaded(record: RequestRecord) -> int:
    return 0 if record.kv is None else record.kv.loaded_tokens


def _at_most(tokens: int) -> int:
    """The power of two at or above it; 0 is a kind of its own."""
    return 0 if tokens <= 0 else 1 << (tokens - 1).bit_length()


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
