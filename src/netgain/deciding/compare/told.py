"""What a server or a result tells of a side, as traits. Only what was really said is taken; "auto" says nothing."""

from collections.abc import Mapping

from netgain.deciding.compare.traits import Trait, Traits, canonical
from netgain.measuring.measurement.result import Server

_NETGAIN: Mapping[str, str] = {
    "devices": "devices",
    "threads": "threads",
    "memory": "memory_bytes",
    "max_batch_tokens": "max_batch_tokens",
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
        found["devices"] = _sglang_devices(server)
    known = {name: canonical(name, value) for name, value in found.items()}
    return {name: Trait(value, "server") for name, value in known.items() if value is not None}


def from_result(traits: Traits) -> dict[str, Trait]:
    """The same traits, known from a file."""
    return {name: Trait(trait.value, "result") for name, trait in traits.items()}


def all_told(server: Server) -> dict[str, str]:
    """Everything that was said, for the report."""
    return {name: str(value) for name, value in server.said.items() if value is not None}


def _sglang_devices(server: Server) -> int | None:
    """Its server arguments: tensor x pipeline x data parallel ranks; data parallel attention shares the tensor ranks."""
    sizes = [server.said.get(name) for name in ("tp_size", "pp_size", "dp_size")]
    whole = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool)]
    if len(whole) < len(sizes):
        return None
    tensor, pipeline, data = whole
    return tensor * pipeline * (1 if server.said.get("enable_dp_attention") else data)
