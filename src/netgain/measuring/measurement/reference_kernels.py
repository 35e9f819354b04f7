"""Whether a netgain server computes with torch's reference kernels on a CPU, whose speed says nothing of netgain's own."""

from collections.abc import Mapping


def reference_kernels(engine: str | None, told: Mapping[str, object]) -> str | None:
    """A caveat for every figure of that server, from what its `/v1/models` tells; None where it has the compiled kernels or runs
    on a GPU, where torch's are the ones there are, and of other engines."""
    kernels, device = str(told.get("kernels") or ""), str(told.get("device") or "cpu")
    if engine != "netgain" or not kernels.startswith("torch-") or not device.startswith("cpu"):
        return None
    note = str(told.get("kernels_note") or "")
    why = note if note not in ("", "null", "None") else "it does not say why"
    return (
        f"The server computes with the reference kernels ({kernels}: {why}) instead of netgain's compiled ones: its times are "
        "those of the fallback, and nothing here says how fast netgain is."
    )
