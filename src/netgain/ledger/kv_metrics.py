"""KV tiers as Prometheus metrics: which names of an engine's report become which metric."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Histogram

from netgain.ledger.records import RequestRecord

COUNTERS: Mapping[str, tuple[str, str]] = {
    "kv_lookups": ("netgain_kv_lookups", "Requests for which tiers were asked what they have."),
    "kv_lookups_hit": ("netgain_kv_lookups_hit", "Those of them for which there was something."),
    "kv_lookups_skipped": ("netgain_kv_lookups_skipped", "Requests that were sooner computed than asked about."),
    "kv_lookups_late": ("netgain_kv_lookups_late", "Answers that were not waited for any longer."),
    "kv_lookup_tokens": ("netgain_kv_lookup_tokens", "Prompt tokens that tiers were asked for."),
    "kv_found_tokens": ("netgain_kv_found_tokens", "Those of them that were there."),
    "kv_loaded_tokens": ("netgain_kv_loaded_tokens", "Those of them that were loaded and used."),
    "kv_wasted_tokens": ("netgain_kv_wasted_tokens", "Tokens whose KV came and was not used, as after an abort."),
    "kv_wasted_bytes": ("netgain_kv_wasted_bytes", "Bytes of KV that came and was not used."),
    "kv_recompute_chosen": (
        "netgain_kv_recompute_chosen",
        "Requests with KV in tiers that were predicted to be sooner computed.",
    ),
    "kv_loads": ("netgain_kv_loads", "Loads that ended."),
    "kv_loads_failed": ("netgain_kv_loads_failed", "Those of them that brought less than was chosen."),
    "kv_overlaps": ("netgain_kv_overlaps", "Loads whose last part came while what follows was computed."),
    "kv_overlaps_late": ("netgain_kv_overlaps_late", "Such whose KV did not come in time: the step's work was void."),
    "kv_loads_cut": ("netgain_kv_loads_cut", "Loads ended early because the rest was sooner computed."),
    "kv_probes": ("netgain_kv_probes", "Reads whose only purpose was to measure a link that nobody used."),
    "kv_stores_dropped": ("netgain_kv_stores_dropped", "Blocks that were not stored because too many waited."),
}
BLEND_COUNTERS: Mapping[str, tuple[str, str]] = {
    "blend_requests": ("netgain_blend_requests", "Prompts with chunks."),
    "blend_exact_requests": ("netgain_blend_exact_requests", "Those of them that were computed whole."),
    "blend_chunks_found": ("netgain_blend_chunks_found", "Chunks that were there when they were joined."),
    "blend_chunks_missed": ("netgain_blend_chunks_missed", "Chunks that had to be computed by themselves."),
    "blend_chunks_fetched": ("netgain_blend_chunks_fetched", "Chunks brought into memory from tiers."),
    "blend_chunks_left": ("netgain_blend_chunks_left", "Chunks that tiers had, and that were sooner computed."),
    "blend_chunk_tokens": ("netgain_blend_chunk_tokens", "Tokens in chunks of prompts."),
    "blend_recomputed_tokens": (
        "netgain_blend_recomputed_tokens",
        "Those of them computed anew, on the mean of the layers; the rest was reused.",
    ),
    "blend_alone_tokens": ("netgain_blend_alone_tokens", "Tokens of chunks computed by themselves."),
    "blend_rotation_s": ("netgain_blend_rotation_seconds", "Time of moving chunks to their places in prompts."),
    "blend_alone_s": ("netgain_blend_alone_seconds", "Time of computing chunks by themselves."),
    "blend_join_s": ("netgain_blend_join_seconds", "Time of computing prompts with chunks, the other two left out."),
}
BLEND_GAUGES: Mapping[str, tuple[str, str]] = {
    "blend_memory_bytes": ("netgain_blend_memory_bytes", "Bytes of chunks in memory, ready to be joined."),
}
TIER_COUNTERS: Mapping[str, tuple[str, str]] = {
    "tier_hits": ("netgain_kv_tier_hits", "Objects read from a tier and used."),
    "tier_misses": ("netgain_kv_tier_misses", "Objects asked of a tier that it did not give."),
    "tier_loaded_bytes": ("netgain_kv_tier_loaded_bytes", "Bytes read from a tier."),
    "tier_loaded_s": ("netgain_kv_tier_loaded_seconds", "Time of the exchanges that read."),
    "tier_stored_bytes": ("netgain_kv_tier_stored_bytes", "Bytes written to a tier."),
    "tier_stored_s": ("netgain_kv_tier_stored_seconds", "Time of the exchanges that wrote."),
    "tier_evictions": ("netgain_kv_tier_evictions", "Objects that made room for others."),
    "tier_promoted": ("netgain_kv_tier_promoted", "Objects read from a tier and offered to the faster ones."),
    "tier_demoted": ("netgain_kv_tier_demoted", "Objects that a tier gave up and the next slower one was offered."),
    "tier_not_admitted": ("netgain_kv_tier_not_admitted", "Blocks that the rule of a tier kept out of it."),
    "tier_pins_refused": ("netgain_kv_tier_pins_refused", "Objects not pinned: their tenant had its share."),
    "tier_pins_taken_back": ("netgain_kv_tier_pins_taken_back", "Objects no longer pinned: other tenants asked."),
    "tier_breaker_opened": ("netgain_kv_tier_breaker_opened", "Times a tier failed and was left alone."),
}
REASON_COUNTERS: Mapping[str, tuple[str, str]] = {
    "refused": ("netgain_kv_tier_refused", "Objects that were damaged, foreign, forged or of another layout."),
    "unread": ("netgain_kv_tier_unread", "Objects not read: time was up, the tier failed, or was not asked."),
    "unwritten": ("netgain_kv_tier_unwritten", "Objects not stored: full, read-only, failed, or too many waited."),
}
CODEC_COUNTERS: Mapping[str, tuple[str, str]] = {
    "codec_stored": ("netgain_kv_codec_stored", "Objects that went to a tier in this form; raw is one."),
    "codec_raw_bytes": ("netgain_kv_codec_raw_bytes", "Bytes of KV that went to a tier through a codec."),
    "codec_coded_bytes": ("netgain_kv_codec_coded_bytes", "What they became."),
    "codec_encode_s": (
        "netgain_kv_codec_encode_seconds",
        "Time of encoding, of a form that several tiers take at the fastest of them.",
    ),
    "codec_decode_s": ("netgain_kv_codec_decode_seconds", "Time of decoding what was loaded from a tier."),
}
CODEC_GAUGES: Mapping[str, tuple[str, str]] = {
    "codec_break_even_bytes_per_s": (
        "netgain_kv_codec_break_even_bytes_per_second",
        "Bandwidth of a tier above which raw KV is sooner there than this codec, by the codec's rates as learnt.",
    ),
}
TIER_GAUGES: Mapping[str, tuple[str, str]] = {
    "tier_bytes": ("netgain_kv_tier_bytes", "Bytes that a tier holds, where it can tell."),
    "tier_capacity_bytes": (
        "netgain_kv_tier_capacity_bytes",
        "Bytes that netgain keeps in a tier at most, where it does.",
    ),
    "tier_notices": (
        "netgain_kv_tier_notices",
        "What a tier's server has set that works against keeping KV there; the log says what, and the mend.",
    ),
    "tier_queued_bytes": ("netgain_kv_tier_queued_bytes", "Bytes waiting to be stored in a tier."),
    "tier_pinned_bytes": ("netgain_kv_tier_pinned_bytes", "Bytes that pins keep from eviction."),
    "tier_broken": ("netgain_kv_tier_broken", "1 while a tier is left alone because it failed."),
    "tier_load_latency_s": ("netgain_kv_tier_load_latency_seconds", "Latency of reading, as learnt."),
    "tier_load_bytes_per_s": ("netgain_kv_tier_load_bytes_per_second", "Bandwidth of reading, as learnt."),
    "tier_load_p95_s": ("netgain_kv_tier_load_seconds_p95", "Time of one exchange that read, over the last 512: p95."),
    "tier_load_p99_s": ("netgain_kv_tier_load_seconds_p99", "Time of one exchange that read, over the last 512: p99."),
    "tier_store_p95_s": (
        "netgain_kv_tier_store_seconds_p95",
        "Time of one exchange that wrote, over the last 512: p95.",
    ),
    "tier_store_p99_s": (
        "netgain_kv_tier_store_seconds_p99",
        "Time of one exchange that wrote, over the last 512: p99.",
    ),
    "tier_load_error": ("netgain_kv_tier_load_error_ratio", "How far such a prediction is off at the median."),
}

_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)
_RATIOS = (0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)


class ReuseHistograms:
    """Of ended requests: how much of their prompts was reused, or computed anew in chunks, how long loads were waited for, and
    what the predictions behind the decisions were worth."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._hits = Histogram(
            "netgain_kv_hit_tokens",
            "Prompt tokens of a request found on the device or in tiers, where there were any.",
            registry=registry,
            buckets=_TOKENS,
        )
        self._loaded = Histogram(
            "netgain_kv_load_tokens",
            "Prompt tokens of a request loaded from tiers, where there were any.",
            ["source"],
            registry=registry,
            buckets=_TOKENS,
        )
        self._waited = Histogram(
            "netgain_kv_load_wait_seconds",
            "What a request waited for its KV.",
            ["source"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._prediction = Histogram(
            "netgain_kv_prediction_ratio",
            "From admission to the first token, over what was predicted.",
            ["why"],
            registry=registry,
            buckets=_RATIOS,
        )

        self._recomputed = Histogram(
            "netgain_blend_recomputed_ratio",
            "Share of a prompt's chunk tokens that was computed anew.",
            registry=registry,
            buckets=_SHARES,
        )

    def add(self, record: RequestRecord) -> None:
        if record.cached_tokens:
            self._hits.observe(record.cached_tokens)
        if record.blending is not None and record.blending.chunk_tokens:
            self._recomputed.observe(record.blending.recomputed_tokens / record.blending.chunk_tokens)
        kv = record.kv
        if kv is None:
            return
        if kv.loaded_tokens and kv.source is not None:
            self._loaded.labels(kv.source).observe(kv.loaded_tokens)
            self._waited.labels(kv.source).observe(max(0.0, kv.waited_s))
        if kv.actual_s is not None and kv.warm_s:
            self._prediction.labels(kv.why).observe(max(0.0, kv.actual_s / kv.warm_s))
