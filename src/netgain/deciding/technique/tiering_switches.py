"""How each engine is told to keep KV beyond the device, and with which versions that was tried."""

import json
from collections.abc import Callable, Mapping

from netgain.deciding.technique.prediction import Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.errors import UsageError

TIERS = ("dram", "disk", "lmcache")


def tiering_switch(engine: str, setting: Setting) -> SwitchOn:
    """`setting` has `tier` (see TIERS), `gib`, and for a disk its `folder`. Raises UsageError for an engine without such a
    switch, or without that tier."""
    if engine not in _SWITCHES:
        raise UsageError(f"KV tiers have no switch for {engine!r}; known are {', '.join(_SWITCHES)}")
    if setting["tier"] not in TIERS:
        raise UsageError(f"there is no KV tier {setting['tier']!r}; known are {', '.join(TIERS)}")
    return _SWITCHES[engine](setting)


def _netgain(setting: Setting) -> SwitchOn:
    if setting["tier"] == "lmcache":
        raise UsageError("netgain has KV tiers of its own, and none through LMCache; take dram or disk")
    where = "dram" if setting["tier"] == "dram" else f"disk:{setting['folder']}"
    tier = f"{where}:{setting['gib']}GiB"
    return SwitchOn(
        engine="netgain",
        flags=("--kv-tier", tier),
        checked_with=("0.1.0",),
    )


def _vllm(setting: Setting) -> SwitchOn:
    """Its tiers need a GPU. LMCache runs as a server of its own (its mode inside vLLM is deprecated), which the user starts and
    which has its own size."""
    gib = setting["gib"]
    if setting["tier"] == "disk":
        extra = {
            "cpu_bytes_to_use": int(float(gib) * (1 << 30)),
            "spec_name": "TieringOffloadingSpec",
            "secondary_tiers": [{"type": "fs", "root_dir": setting["folder"]}],
        }
        config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
        flags: tuple[str, ...] = ("--kv-transfer-config", json.dumps(config))
    else:
        backend = "native" if setting["tier"] == "dram" else "lmcache"
        flags = ("--kv-offloading-size", str(gib), "--kv-offloading-backend", backend)
    return SwitchOn(engine="vllm", flags=flags, checked_with=(), read_from="0.32.0")


def _sglang(setting: Setting) -> SwitchOn:
    """HiCache; its size is in GB and a whole number."""
    if setting["tier"] == "lmcache":
        flags: tuple[str, ...] = ("--enable-lmcache",)
    else:
        gigabytes = max(1, round(float(setting["gib"]) * (1 << 30) / 1e9))
        flags = ("--enable-hierarchical-cache", "--hicache-size", str(gigabytes))
        if setting["tier"] == "disk":
            flags = (*flags, "--hicache-storage-backend", "file")
    return SwitchOn(
        engine="sglang", flags=flags, checked_with=(), read_from="0.5.18 (sgl-project/sglang at d315eb725044)"
    )


def _llama_cpp(setting: Setting) -> SwitchOn:
    if setting["tier"] != "dram":
        raise UsageError(f"llama.cpp keeps prompts in memory alone, so it has no tier {setting['tier']!r}; take dram")
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
