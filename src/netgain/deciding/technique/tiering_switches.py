"""How each engine is told to keep KV in memory beyond the device, and with which versions that was tried. Tiers that outlive a
server are not tried: what one start left behind would be there for the next, and every start is to begin cold."""

from collections.abc import Callable, Mapping

from netgain.deciding.technique.prediction import Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.errors import UsageError


def tiering_switch(engine: str, setting: Setting) -> SwitchOn:
    """`setting` has `gib`. Raises UsageError for an engine without such a switch."""
    if engine not in _SWITCHES:
        raise UsageError(f"KV tiers have no switch for {engine!r}; known are {', '.join(_SWITCHES)}")
    return _SWITCHES[engine](setting)


def _netgain(setting: Setting) -> SwitchOn:
    return SwitchOn(engine="netgain", flags=("--kv-tier", f"dram:{setting['gib']}GiB"), checked_with=("0.1.0",))


def _vllm(setting: Setting) -> SwitchOn:
    """Its tiers need a GPU."""
    flags = ("--kv-offloading-size", str(setting["gib"]), "--kv-offloading-backend", "native")
    return SwitchOn(engine="vllm", flags=flags, checked_with=(), read_from="0.32.0")


def _sglang(setting: Setting) -> SwitchOn:
    """HiCache; its size is in GB and a whole number."""
    gigabytes = max(1, round(float(setting["gib"]) * (1 << 30) / 1e9))
    flags = ("--enable-hierarchical-cache", "--hicache-size", str(gigabytes))
    return SwitchOn(
        engine="sglang", flags=flags, checked_with=(), read_from="0.5.18 (sgl-project/sglang at d315eb725044)"
    )


def _llama_cpp(setting: Setting) -> SwitchOn:
    mebibytes = max(1, round(float(setting["gib"]) * 1024))
    return SwitchOn(
        engine="llama.cpp",
        flags=("--cache-ram", str(mebibytes)),
        checked_with=(),
        read_from="the help of the build in llama-cpp-python 0.3.36, where 8192 is the default",
    )


_SWITCHES: Mapping[str, Callable[[Setting], SwitchOn]] = {
    "netgain": _netgain,
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llama_cpp,
}
