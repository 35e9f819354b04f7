"""What a running vLLM tells of its KV: in which type it is kept, how many tokens fit, and what one takes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from netgain.cost.kv import token_bytes
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.effective import effective_configuration
from netgain.deciding.experiment.arms.launched import LaunchedServer
from netgain.deciding.technique.kv_int8 import VALUE_BYTES
from netgain.measuring.observe.scrape import snapshot

_INFO = "vllm:cache_config_info"
_AS_THE_MODEL = "auto"


async def kv_told(settings: Settings, arm: Arm) -> dict[str, str]:
    """`kv_dtype`, `kv_tokens` and `kv_token_bytes` under the names of netgain's model card; what is not known is not there.

    From vLLM's metrics, its configuration (the type of the model, where KV has that) and the model's config.json, if it is a
    local folder. The two sizes only where kv-tiers was named: its switch was never tried, so nobody is led to it.
    """
    if settings.engine != "vllm":
        return {}
    seen = await snapshot(f"{arm.url}/metrics")
    families = () if seen is None else seen.families.values()
    samples = (sample for family in families for sample in family.samples if sample.name == _INFO)
    labels = next((dict(sample.labels) for sample in samples), {})
    log = arm.log if isinstance(arm, LaunchedServer) else ""
    configuration = await effective_configuration(arm.url, "vllm", log) or {}
    dtype = kv_dtype(labels, configuration)
    found = {} if dtype is None else {"kv_dtype": dtype}
    if settings.technique == "kv-tiers":
        sizes = {"kv_tokens": kv_tokens(labels), "kv_token_bytes": kv_token_bytes(settings.model, dtype)}
        found |= {name: str(size) for name, size in sizes.items() if size is not None}
    return found


def kv_dtype(labels: Mapping[str, str], configuration: Mapping[str, str]) -> str | None:
    """By the metric's labels, else by the configuration (of /server_info, or of the log); "auto" is the model's own."""
    names = ("cache_config.cache_dtype", "kv_cache_dtype")
    told = labels.get("cache_dtype") or next((configuration[name] for name in names if name in configuration), None)
    if told == _AS_THE_MODEL:
        told = next((configuration[name] for name in ("model_config.dtype", "dtype") if name in configuration), None)
    told = None if told is None else told.removeprefix("torch.")
    return None if told in (None, "", _AS_THE_MODEL) else told


def kv_tokens(labels: Mapping[str, str]) -> int | None:
    """How many tokens fit: newer versions tell it, older ones the blocks."""
    size, blocks, block = (labels.get(name, "") for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size"))
    if size.isdigit():
        return int(size)
    return int(blocks) * int(block) if blocks.isdigit() and block.isdigit() else None


def kv_token_bytes(model: str, dtype: str | None) -> int | None:
    """Of all layers together, by the config.json in the folder `model`. None where there is none, or where layers differ."""
    if dtype not in VALUE_BYTES:
        return None
    try:
        config: dict[str, Any] = msgspec.json.decode((Path(model) / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
    if not _same_in_all_layers(config):
        return None
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size", "num_key_value_heads", "head_dim")
    layers, heads, hidden, kv_heads, size = (config.get(name) for name in names)
    if size is None and _whole(hidden) and _whole(heads):
        size = hidden // heads
    kv_heads = heads if kv_heads is None else kv_heads
    if not (_whole(layers) and _whole(kv_heads) and _whole(size)):
        return None
    return int(token_bytes(layers, kv_heads, size, VALUE_BYTES[dtype]))


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and value > 0


def _same_in_all_layers(config: Mapping[str, Any]) -> bool:
    """Whether every layer keeps keys and values of every token: no latent, no window, no layers of another kind."""
    kinds = config.get("layer_types") or []
    plain = isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)
    window = config.get("sliding_window") and config.get("use_sliding_window", True)
    return plain and not (window or config.get("kv_lora_rank") or config.get("layers_block_type"))
