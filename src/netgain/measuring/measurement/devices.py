"""How many devices a server says it uses."""

from netgain.measuring.measurement.result import Server


def devices_told(server: Server) -> int | None:
    """None where it does not say."""
    if server.engine == "netgain":
        return _whole(server.said.get("devices"))
    return _of_sglang(server) if server.engine == "sglang" else None


def _of_sglang(server: Server) -> int | None:
    """Its server arguments: tensor x pipeline x data parallel ranks; data parallel attention shares the tensor ranks."""
    tensor, pipeline, data = (_whole(server.said.get(name)) for name in ("tp_size", "pp_size", "dp_size"))
    if tensor is None or pipeline is None or data is None:
        return None
    return tensor * pipeline * (1 if server.said.get("enable_dp_attention") else data)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
