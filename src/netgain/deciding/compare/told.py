"""What a server or a result tells of a side, as traits. Only what was really said is taken; "auto" says nothing."""

import math
from collections.abc import Mapping

from netgain.deciding.compare.traits import Trait, Traits, canonical
from netgain.measuring.measurement.devices import devices_told
from netgain.measuring.measurement.result import Server

_NETGAIN: Mapping[str, str] = {
    "devices": "devices",
    "threads": "threads",
    "memory": "memory_bytes",
    "max_batch_tokens": "max_batch_tokens",
}
_VLLM: Mapping[str, tuple[str, ...]] = {
    "dtype": ("model_config.dtype", "dtype"),
    "quantization": ("model_config.quantization", "quantization"),
    "kv_dtype": ("cache_config.cache_dtype", "kv_cache_dtype"),
    "device": ("device_config.device_type", "device_config.device", "device_config"),
    "max_running": ("scheduler_config.max_num_seqs",),
    "max_batch_tokens": ("scheduler_config.max_num_batched_tokens",),
    "world": ("parallel_config.world_size",),
    "replicas": ("parallel_config.data_parallel_size",),
}


def told_traits(server: Server) -> dict[str, Trait]:
    """Traits by field name; what it does not say is not there."""
    found: dict[str, object] = {
        "model": server.model,
        "weights": server.weights,
        "dtype": server.dtype,
        "kv_dtype": server.kv_dtype,
        "device": server.device,
        "kv_tokens": server.kv_tokens,
        "max_length": server.max_model_len,
        "max_running": server.max_running,
    }
    if server.engine == "netgain":
        found.update((name, server.said.get(own)) for name, own in _NETGAIN.items())
    elif server.engine == "sglang":
        found["devices"] = devices_told(server)
    known = {name: canonical(name, value) for name, value in found.items()}
    return {name: Trait(value, "server") for name, value in known.items() if value is not None}


def configured_traits(engine: str | None, configuration: Mapping[str, str]) -> dict[str, Trait]:
    """What a started vLLM tells of itself on its development route (/server_info) or in its log, which its models and metrics
    do not; fields of vllm/config at 0.32. A KV cache of type "auto" has the model's."""
    if engine != "vllm":
        return {}
    said = {
        name: next((configuration[own] for own in names if own in configuration), None) for name, names in _VLLM.items()
    }
    parts = [part for part in (said["dtype"], said["quantization"]) if part not in (None, "None", "null")]
    sizes = [said[name] for name in ("world", "replicas")]
    found: dict[str, object] = {
        "dtype": "+".join(part.removeprefix("torch.") for part in parts if part is not None) or None,
        "kv_dtype": said["dtype"] if said["kv_dtype"] == "auto" else said["kv_dtype"],
        "device": said["device"],
        "max_running": said["max_running"],
        "max_batch_tokens": said["max_batch_tokens"],
        "devices": math.prod(int(size) for size in sizes if size) if all(_whole(size) for size in sizes) else None,
    }
    known = {name: canonical(name, value) for name, value in found.items()}
    return {name: Trait(value, "server") for name, value in known.items() if value is not None}


def _whole(size: str | None) -> bool:
    return size is not None and size.isdigit()


def from_result(traits: Traits) -> dict[str, Trait]:
    """The same traits, known from a file."""
    return {name: Trait(trait.value, "result") for name, trait in traits.items()}
