"""How each engine is told to keep KV beyond the device, and with which versions that was tried."""

import json
from collections.abc import Callable, Mapping

from netgain.deciding.technique.prediction import Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.errors import UsageError

_SERVER_APART = (
    "LMCache runs as a server of its own, which the user starts and sizes and which outlives the arm: that it began each "
    "start empty "
    "rests on the command or hook that empties it, and was not verified here"
)
_NO_LIMIT = "the tier in the folder has no limit of size: vLLM removes nothing from it"


def tiering_switch(engine: str, setting: Setting) -> SwitchOn:
    """`setting` has `tier` (dram, disk, lmcache), `gib` and for a disk its `folder`. Raises UsageError for an engine without
    such a switch, or without that tier."""
    if engine not in _SWITCHES:
        raise UsageError(f"KV tiers have no switch for {engine!r}; known are {', '.join(_SWITCHES)}")
    return _SWITCHES[engine](setting)


def _netgain(setting: Setting) -> SwitchOn:
    if setting["tier"] == "lmcache":
        raise UsageError("netgain has KV tiers of its own, and none through LMCache; take dram or disk:FOLDER")
    where = "dram" if setting["tier"] == "dram" else f"disk:{setting['folder']}"
    return SwitchOn(engine="netgain", flags=("--kv-tier", f"{where}:{setting['gib']}GiB"), checked_with=("0.1.0",))


def _vllm(setting: Setting) -> SwitchOn:
    """Its CPU build ends with "CPU Offloading is currently only supported on CUDA-alike and XPU GPUs". Of a disk tier `gib` is
    that of the memory before it, through which all goes."""
    gib, warns = setting["gib"], tuple[str, ...]()
    if setting["tier"] == "disk":
        extra = {
            "cpu_bytes_to_use": int(float(gib) * (1 << 30)),
            "spec_name": "TieringOffloadingSpec",
            "secondary_tiers": [{"type": "fs", "root_dir": setting["folder"]}],
        }
        config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
        flags: tuple[str, ...] = ("--kv-transfer-config", json.dumps(config))
        warns = (_NO_LIMIT,)
    else:
        backend = "native" if setting["tier"] == "dram" else "lmcache"
        flags = ("--kv-offloading-size", str(gib), "--kv-offloading-backend", backend)
        warns = () if backend == "native" else (_SERVER_APART,)
    return SwitchOn(engine="vllm", flags=flags, checked_with=(), read_from="0.32.0", warns=warns)


def _sglang(setting: Setting) -> SwitchOn:
    """HiCache; its size is in GB and a whole number, and of a disk tier that of the memory before it. LMCache has its own
    size."""
    if setting["tier"] == "lmcache":
        flags: tuple[str, ...] = ("--enable-lmcache",)
        return SwitchOn(engine="sglang", flags=flags, checked_with=(), read_from="0.5.23", warns=(_SERVER_APART,))
    gigabytes = max(1, round(float(setting["gib"]) * (1 << 30) / 1e9))
    flags = ("--enable-hierarchical-cache", "--hicache-size", str(gigabytes))
    if setting["tier"] == "disk":
        extra = json.dumps({"file_storage_path": setting["folder"]})
        storage = ("--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config", extra)
        return SwitchOn(engine="sglang", flags=(*flags, *storage), checked_with=(), read_from="0.5.23")
    return SwitchOn(
        engine="sglang", flags=flags, checked_with=(), read_from="0.5.18 (sgl-project/sglang at d315eb725044)"
    )


def _llama_cpp(setting: Setting) -> SwitchOn:
    """Prompts that lost their slot; 8192 is its default."""
    if setting["tier"] != "dram":
        raise UsageError(f"llama.cpp keeps prompts in memory alone, so it has no tier {setting['tier']!r}; take dram")
    mebibytes = max(1, round(float(setting["gib"]) * 1024))
    return SwitchOn(
        engine="llama.cpp",
        flags=("--cache-ram", str(mebibytes)),
        checked_with=("0.5.0-dev (0c1e570)",),
    )


_SWITCHES: Mapping[str, Callable[[Setting], SwitchOn]] = {
    "netgain": _netgain,
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llama_cpp,
}
