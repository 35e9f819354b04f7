"""What another engine tells of its KV: in which type it is kept, how many tokens fit, what one takes, and what it loaded from
beyond."""

from collections.abc import Mapping, Sequence

from netgain.deciding.decide.kv_sizes import gguf_token_bytes, kv_token_bytes, model_config
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.effective import effective_configuration
from netgain.deciding.experiment.arms.launched import LaunchedServer
from netgain.deciding.experiment.arms.starting import given_variables, given_words, option
from netgain.deciding.technique.codec_asked import KVMoved
from netgain.measuring.observe.scrape import Observed, snapshot

_INFO = "vllm:cache_config_info"
_AS_THE_MODEL = "auto"
_LLAMA_TYPE = "f16"  # llama.cpp's default for keys and for values (its --help)
# What was loaded from beyond the device: counter of bytes, and seconds as a counter or the sum of a histogram, by seconds per
# unit. vLLM: distributed/kv_transfer/kv_connector/v1/offloading/metrics.py (0.33). SGLang: srt/observability/metrics_collector.py
# (0.5.23). LMCache inside vLLM: observability.py (0.5.6), whose times are milliseconds.
_MOVED = (
    ("vllm:kv_offload_load_bytes", "vllm:kv_offload_load_time", 1.0),
    ("sglang:load_back_bytes", "sglang:load_back_duration_seconds", 1.0),
    ("lmcache:num_remote_read_bytes", "lmcache:remote_time_to_get", 1e-3),
)


async def kv_told(settings: Settings, arm: Arm) -> dict[str, str]:
    """`kv_dtype`, `kv_tokens` and `kv_token_bytes` under the names of netgain's model card; what is not known is not there. The
    two sizes only where kv-tiers was named: elsewhere its switch was never tried, so nobody is led to it."""
    if settings.engine == "netgain":
        return {}
    log = arm.log if isinstance(arm, LaunchedServer) else ""
    configuration = await effective_configuration(arm.url, settings.engine, log, arm.headers) or {}
    dtype: str | None = None
    room: int | None = None
    token: int | None = None
    if settings.engine == "vllm":
        labels = await _cache_info(arm)
        dtype, room = kv_dtype(labels, configuration), kv_tokens(labels)
        token = kv_token_bytes(settings.model, dtype)
    elif settings.engine == "sglang":
        dtype = sglang_dtype(configuration, settings.model)
        room = _number(configuration.get("max_total_num_tokens"))
        token = kv_token_bytes(settings.model, dtype)
    elif settings.engine == "llama.cpp" and "kv-tiers" in settings.techniques:
        room = llama_tokens(configuration)
        keys, values = llama_types(given_words(settings.starting), settings.starting.environment)
        token = gguf_token_bytes(settings.model, keys, values)
    found = {} if dtype is None else {"kv_dtype": dtype}
    if "kv-tiers" in settings.techniques:
        sizes = {"kv_tokens": room, "kv_token_bytes": settings.kv_token_bytes or token}
        found |= {name: str(size) for name, size in sizes.items() if size is not None}
    return found


def kv_dtype(labels: Mapping[str, str], configuration: Mapping[str, str]) -> str | None:
    """vLLM's, by the metric's labels, else by the configuration (of /server_info, or of the log); "auto" is the model's own."""
    names = ("cache_config.cache_dtype", "kv_cache_dtype")
    told = labels.get("cache_dtype") or next((configuration[name] for name in names if name in configuration), None)
    if told == _AS_THE_MODEL:
        told = next((configuration[name] for name in ("model_config.dtype", "dtype") if name in configuration), None)
    told = None if told is None else told.removeprefix("torch.")
    return None if told in (None, "", _AS_THE_MODEL) else told


def kv_tokens(labels: Mapping[str, str]) -> int | None:
    """How many tokens fit in vLLM: newer versions tell it, older ones the blocks."""
    size, blocks, block = (labels.get(name, "") for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size"))
    if size.isdigit():
        return int(size)
    return int(blocks) * int(block) if blocks.isdigit() and block.isdigit() else None


def sglang_dtype(configuration: Mapping[str, str], model: str) -> str | None:
    """SGLang's; "auto" is the type that the weights are run in, where "auto" again is the model's own, but float16 for float32
    (the help of --dtype, 0.5.23)."""
    told = configuration.get("kv_cache_dtype")
    if told != _AS_THE_MODEL:
        return told or None
    if (run := configuration.get("dtype", _AS_THE_MODEL).removeprefix("torch.")) != _AS_THE_MODEL:
        return {"half": "float16", "float": "float32"}.get(run, run)
    config = model_config(model) or {}
    own = config.get("dtype") or config.get("torch_dtype")
    return None if not isinstance(own, str) else {"float32": "float16"}.get(own, own)


def llama_tokens(configuration: Mapping[str, str]) -> int | None:
    """Of all slots of llama.cpp together, each of which keeps the prompt that it answered last."""
    slots, each = (_number(configuration.get(name)) for name in ("total_slots", "default_generation_settings.n_ctx"))
    return None if slots is None or each is None else slots * each


def llama_types(given: Sequence[str], environment: Mapping[str, str]) -> tuple[str, str]:
    """The types in which llama.cpp keeps keys and values, by its flags (the last one counts) and variables."""
    variables = given_variables(given, environment)
    found: list[str] = []
    for names, variable in (
        (("--cache-type-k", "-ctk"), "LLAMA_ARG_CACHE_TYPE_K"),
        (("--cache-type-v", "-ctv"), "LLAMA_ARG_CACHE_TYPE_V"),
    ):
        told = variables.get(variable, _LLAMA_TYPE)
        for place, word in enumerate(given):
            if option(word) in names:
                told = word.partition("=")[2] or next(iter(given[place + 1 : place + 2]), "")
        found.append(told.lower())
    return found[0], found[1]


def kv_moved(seen: Observed) -> KVMoved | None:
    """What a window's counters say was loaded from beyond the device; None where nothing tells, or nothing was."""
    for moved, took, unit in _MOVED:
        counted = _gained(seen, moved)
        took_s = _gained(seen, took)
        if counted and took_s:
            return KVMoved(bytes=counted, seconds=took_s * unit, source=f"{moved} and {took} on its /metrics")
    return None


def _gained(seen: Observed, name: str) -> float | None:
    if seen.window is None:
        return None
    for spelled in (name, f"{name}_total"):
        if (gained := seen.window.gained(spelled)) is not None:
            return gained
    histogram = seen.window.histograms.get(name)
    return None if histogram is None else histogram.sum


async def _cache_info(arm: Arm) -> dict[str, str]:
    seen = await snapshot(f"{arm.url}/metrics", arm.headers)
    families = () if seen is None else seen.families.values()
    samples = (sample for family in families for sample in family.samples if sample.name == _INFO)
    return next((dict(sample.labels) for sample in samples), {})


def _number(told: str | None) -> int | None:
    return int(told) if told is not None and told.isdigit() else None
