"""What each engine calls the same quantity, newest name first. A name that is not there is unknown, said with the names tried.

netgain: ledger/prometheus.py. vLLM: the engine's v1/metrics/loggers.py (0.32 and what earlier versions called it). SGLang:
srt/observability/metrics_collector.py (0.5); older ones also with `sglang_`. llama.cpp: the server's /metrics.
"""

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from netgain.measuring.observe.window import ServerWindow

Engine = Literal["netgain", "vllm", "sglang", "llama.cpp"]
Role = Literal["counter", "gauge", "histogram"]

PREFIXES: Mapping[str, Engine] = {
    "netgain_": "netgain",
    "vllm:": "vllm",
    "sglang:": "sglang",
    "sglang_": "sglang",
    "llamacpp:": "llama.cpp",
}


class Meaning(msgspec.Struct, frozen=True):
    """`unit` is requests, tokens, seconds or share. `names`: per engine, in the order in which they are tried."""

    role: Role
    unit: str
    names: Mapping[Engine, tuple[str, ...]]


MEANINGS: Mapping[str, Meaning] = {
    "running": Meaning(
        "gauge",
        "requests",
        {
            "netgain": ("netgain_requests_running",),
            "vllm": ("vllm:num_requests_running",),
            "sglang": ("sglang:num_running_reqs",),
            "llama.cpp": ("llamacpp:requests_processing",),
        },
    ),
    "waiting": Meaning(
        "gauge",
        "requests",
        {
            "netgain": ("netgain_requests_waiting",),
            "vllm": ("vllm:num_requests_waiting",),
            "sglang": ("sglang:num_queue_reqs",),
            "llama.cpp": ("llamacpp:requests_deferred",),
        },
    ),
    "kv_usage": Meaning(
        "gauge",
        "share",
        {
            "vllm": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "vllm:cpu_cache_usage_perc"),
            "sglang": ("sglang:token_usage",),
            "llama.cpp": ("llamacpp:kv_cache_usage_ratio",),
        },
    ),
    "prompt_tokens": Meaning(  # those found in a cache included
        "counter",
        "tokens",
        {
            "netgain": ("netgain_prompt_tokens_total",),
            "vllm": ("vllm:prompt_tokens_total",),
            "sglang": ("sglang:prompt_tokens_total",),
        },
    ),
    "prefilled_tokens": Meaning(  # those that were computed
        "counter",
        "tokens",
        {
            "netgain": ("netgain_step_prefill_tokens_total",),
            "llama.cpp": ("llamacpp:prompt_tokens_total",),
        },
    ),
    "output_tokens": Meaning(
        "counter",
        "tokens",
        {
            "netgain": ("netgain_output_tokens_total",),
            "vllm": ("vllm:generation_tokens_total",),
            "sglang": ("sglang:generation_tokens_total",),
            "llama.cpp": ("llamacpp:tokens_predicted_total",),
        },
    ),
    "cached_tokens": Meaning(
        "counter",
        "tokens",
        {
            "netgain": ("netgain_cached_tokens_total",),
            "vllm": (
                "vllm:prompt_tokens_cached_total",
                "vllm:prefix_cache_hits_total",
                "vllm:gpu_prefix_cache_hits_total",
            ),
            "sglang": ("sglang:cached_tokens_total",),
            "llama.cpp": ("llamacpp:prompt_tokens_cached_total",),
        },
    ),
    "requests": Meaning(
        "counter",
        "requests",
        {
            "netgain": ("netgain_requests_total",),
            "vllm": ("vllm:request_success_total",),
            "sglang": ("sglang:num_requests_total",),
        },
    ),
    "preemptions": Meaning(
        "counter",
        "requests",
        {
            "netgain": ("netgain_preemptions_total",),
            "vllm": ("vllm:num_preemptions_total",),
            "sglang": ("sglang:num_retracted_requests_total",),
        },
    ),
    "draft_steps": Meaning(
        "counter",
        "steps",
        {
            "netgain": ("netgain_draft_steps_total",),
            "vllm": ("vllm:spec_decode_num_drafts_total",),
            "sglang": ("sglang:spec_verify_calls_total",),
            "llama.cpp": ("llamacpp:spec_decode_num_drafts_total",),
        },
    ),
    "drafted_tokens": Meaning(
        "counter",
        "tokens",
        {
            "netgain": ("netgain_drafted_tokens_total",),
            "vllm": ("vllm:spec_decode_num_draft_tokens_total",),
            "llama.cpp": ("llamacpp:spec_decode_num_draft_tokens_total",),
        },
    ),
    "accepted_tokens": Meaning(
        "counter",
        "tokens",
        {
            "netgain": ("netgain_accepted_tokens_total",),
            "vllm": ("vllm:spec_decode_num_accepted_tokens_total",),
            "llama.cpp": ("llamacpp:spec_decode_num_accepted_tokens_total",),
        },
    ),
    "ttft": Meaning(
        "histogram",
        "seconds",
        {
            "netgain": ("netgain_ttft_seconds",),
            "vllm": ("vllm:time_to_first_token_seconds",),
            "sglang": ("sglang:time_to_first_token_seconds",),
        },
    ),
    "itl": Meaning(
        "histogram",
        "seconds",
        {
            "netgain": ("netgain_itl_seconds",),
            "vllm": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
            "sglang": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        },
    ),
    "e2e": Meaning(
        "histogram",
        "seconds",
        {
            "netgain": ("netgain_e2e_seconds",),
            "vllm": ("vllm:e2e_request_latency_seconds",),
            "sglang": ("sglang:e2e_request_latency_seconds",),
        },
    ),
    "queue": Meaning(
        "histogram",
        "seconds",
        {"vllm": ("vllm:request_queue_time_seconds",), "sglang": ("sglang:queue_time_seconds",)},
    ),
    "prefill": Meaning("histogram", "seconds", {"vllm": ("vllm:request_prefill_time_seconds",)}),
    "decode": Meaning("histogram", "seconds", {"vllm": ("vllm:request_decode_time_seconds",)}),
}


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One meaning of one window. `name`: the server's own, None when none of `tried` was there; all values None then.

    A counter has `gained`, a gauge `least`, `mean`, `most`; a histogram `count`, `mean`, `p50`, `p95` (linear within their
    buckets, whose bounds `between` has; None: no upper one) and, in `above`, those percentiles that lie above its largest bound
    (the value is that bound). `problem`: why a value is missing.
    """

    role: Role
    unit: str
    name: str | None
    tried: tuple[str, ...]
    gained: float | None = None
    least: float | None = None
    mean: float | None = None
    most: float | None = None
    count: float | None = None
    p50: float | None = None
    p95: float | None = None
    between: dict[str, tuple[float, float | None]] = {}
    above: tuple[str, ...] = ()
    problem: str | None = None


def engine_of(names: set[str]) -> Engine | None:
    """Whose metrics these are. None: nobody's that is known, or those of several engines."""
    found = {engine for prefix, engine in PREFIXES.items() if any(name.startswith(prefix) for name in names)}
    return found.pop() if len(found) == 1 else None


def known_engine(name: str | None) -> Engine | None:
    """The engine of that name; None for one that is not known."""
    return next((engine for engine in PREFIXES.values() if engine == name), None)


def figures(window: ServerWindow, engine: Engine) -> dict[str, Figure]:
    """The meanings that `engine` has a name for, in the order of MEANINGS."""
    return {
        name: _figure(window, meaning, _spellings(engine, meaning.names[engine]))
        for name, meaning in MEANINGS.items()
        if engine in meaning.names
    }


def _spellings(engine: Engine, names: tuple[str, ...]) -> tuple[str, ...]:
    """A counter may come without its suffix, SGLang's names with an underscore for the colon."""
    bare = [name.removesuffix("_total") for name in names if name.endswith("_total")]
    plain = [name.replace("sglang:", "sglang_") for name in (*names, *bare)] if engine == "sglang" else []
    return tuple(dict.fromkeys((*names, *bare, *plain)))


def _figure(window: ServerWindow, meaning: Meaning, tried: tuple[str, ...]) -> Figure:
    if meaning.role == "counter":
        name = next((name for name in tried if name in window.counters), None)
        gained = None if name is None else window.gained(name)
        why = "the server began again within the window" if window.restarts else "it was no number"
        problem = why if name is not None and gained is None else None
        return Figure(role="counter", unit=meaning.unit, name=name, tried=tried, gained=gained, problem=problem)
    if meaning.role == "gauge":
        name = next((name for name in tried if window.gauges.get(name)), None)
        ranges = () if name is None else window.gauges[name]
        if not ranges:
            return Figure(role="gauge", unit=meaning.unit, name=None, tried=tried)
        if meaning.unit == "share":  # of several engines the emptiest and the fullest: a mean hides one that is full
            least, most = min(one.least for one in ranges), max(one.most for one in ranges)
            mean = math.fsum(one.mean for one in ranges) / len(ranges)
        else:
            least, mean, most = (math.fsum(getattr(one, part) for one in ranges) for part in ("least", "mean", "most"))
        return Figure(role="gauge", unit=meaning.unit, name=name, tried=tried, least=least, mean=mean, most=most)
    name = next((name for name in tried if name in window.histograms), None)
    if name is None:
        return Figure(role="histogram", unit=meaning.unit, name=None, tried=tried)
    delta = window.histograms[name]
    quantiles = {text: delta.quantile(share) for text, share in (("p50", 0.5), ("p95", 0.95))}
    values = {text: None if found is None else found[0] for text, found in quantiles.items()}
    return Figure(
        role="histogram",
        unit=meaning.unit,
        name=name,
        tried=tried,
        count=delta.count,
        mean=delta.mean,
        p50=values["p50"],
        p95=values["p95"],
        between={
            text: (bounds[0], bounds[1] if math.isfinite(bounds[1]) else None)
            for text, share in (("p50", 0.5), ("p95", 0.95))
            if (bounds := delta.between(share)) is not None
        },
        above=tuple(text for text, found in quantiles.items() if found is not None and found[1]),
        problem=delta.problem,
    )
