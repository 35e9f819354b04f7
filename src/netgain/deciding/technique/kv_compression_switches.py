"""How each engine is told to code the KV that it keeps beyond the device, and with which versions that was tried."""

import json
from collections.abc import Callable, Mapping

from netgain.deciding.technique.prediction import Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.errors import UsageError

_DEPRECATED = (
    "LMCache inside vLLM (LMCacheConnectorV1) is deprecated in favour of its server, which has other codecs and no such "
    "switch; with "
    "cachegen and Redis its stores have failed with a warning only (LMCache#2787), so look whether anything was loaded"
)
_DEVICE_TOO = (
    "SGLang's HiCache has no codec of its own: with fp8 the KV on the device is narrower as well, so what is measured is both "
    "together, and about twice as much fits on the device"
)


def compression_switch(engine: str, setting: Setting) -> SwitchOn:
    """`setting` has `codec`, in netgain's names, and for vLLM the `url` of LMCache's remote store. The tiers themselves are
    switched on apart (tiering_switches.py). Raises UsageError for an engine without such a switch, or without that codec."""
    if engine not in _SWITCHES:
        raise UsageError(f"codecs for KV have no switch for {engine!r}; known are {', '.join(_SWITCHES)}")
    return _SWITCHES[engine](setting)


def _netgain(setting: Setting) -> SwitchOn:
    return SwitchOn(engine="netgain", flags=("--set", f"engine.kv.codec={setting['codec']}"), checked_with=("0.1.0",))


def _vllm(setting: Setting) -> SwitchOn:
    """Through LMCache inside vLLM, which codes what goes to its remote store (`kivi` there changes nothing, and the codecs of its
    separate server are set at that server)."""
    if setting["codec"] != "cachegen":
        raise UsageError(
            f"vLLM codes stored KV through LMCache, whose one codec inside vLLM is cachegen, not {setting['codec']}; LMCache's "
            "own server has fp8, in its --l2-adapter"
        )
    if "url" not in setting:
        raise UsageError(
            "LMCache codes only what goes to its remote store: give the url of one (--codec cachegen:url=redis://HOST:PORT,...)"
        )
    config = {
        "kv_connector": "LMCacheConnectorV1",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.remote_url": setting["url"], "lmcache.remote_serde": "cachegen"},
    }
    return SwitchOn(
        engine="vllm",
        flags=("--kv-transfer-config", json.dumps(config)),
        checked_with=(),
        read_from="0.32.0 with LMCache 0.5.6",
        warns=(_DEPRECATED,),
    )


def _sglang(setting: Setting) -> SwitchOn:
    """HiCache has no codec: it keeps KV as the device does, so fewer bytes there are fewer bytes on the device, too."""
    if setting["codec"] != "fp8":
        raise UsageError(
            f"SGLang's HiCache keeps KV as the device does, so it has no codec {setting['codec']}; with fp8 both are narrower"
        )
    return SwitchOn(
        engine="sglang",
        flags=("--kv-cache-dtype", "fp8_e4m3"),
        checked_with=(),
        read_from="0.5.23",
        warns=(_DEVICE_TOO,),
    )


_SWITCHES: Mapping[str, Callable[[Setting], SwitchOn]] = {"netgain": _netgain, "vllm": _vllm, "sglang": _sglang}
