"""How each engine is told to copy drafts from a request's own text, and with which versions that was tried."""

import json
from collections.abc import Callable, Mapping

from netgain.deciding.technique.prediction import Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.errors import UsageError


def ngram_switch(engine: str, setting: Setting) -> SwitchOn:
    """`setting` has k, lookup_min and lookup_max. Raises UsageError for an engine without such a switch."""
    if engine not in _SWITCHES:
        raise UsageError(f"n-gram speculation has no switch for {engine!r}; known are {', '.join(_SWITCHES)}")
    return _SWITCHES[engine](setting)


def _netgain(setting: Setting) -> SwitchOn:
    names = ("k", "lookup_min", "lookup_max")
    settings = (part for name in names for part in ("--set", f"engine.speculation.{name}={setting[name]}"))
    return SwitchOn(engine="netgain", flags=("--speculation", "ngram", *settings), checked_with=("0.1.0",))


def _vllm(setting: Setting) -> SwitchOn:
    config = {
        "method": "ngram",
        "num_speculative_tokens": setting["k"],
        "prompt_lookup_min": setting["lookup_min"],
        "prompt_lookup_max": setting["lookup_max"],
    }
    return SwitchOn(engine="vllm", flags=("--speculative-config", json.dumps(config)), checked_with=("0.32.0",))


def _llama_cpp(setting: Setting) -> SwitchOn:
    """It looks up keys of one length only: the shortest of the setting, which finds whatever the longer ones find."""
    flags = (
        "--spec-type",
        "ngram-map-k",
        "--spec-ngram-map-k-size-n",
        str(setting["lookup_min"]),
        "--spec-ngram-map-k-size-m",
        str(setting["k"]),
    )
    return SwitchOn(engine="llama.cpp", flags=flags, checked_with=("0.5.0-dev (0c1e570)",))


def _sglang(setting: Setting) -> SwitchOn:
    """A breadth of 1 makes its tree of drafts a chain."""
    flags = (
        "--speculative-algorithm",
        "NGRAM",
        "--speculative-num-draft-tokens",
        str(setting["k"]),
        "--speculative-ngram-min-bfs-breadth",
        "1",
        "--speculative-ngram-max-bfs-breadth",
        "1",
    )
    return SwitchOn(
        engine="sglang", flags=flags, checked_with=(), read_from="0.5.18 (sgl-project/sglang at d315eb725044)"
    )


_SWITCHES: Mapping[str, Callable[[Setting], SwitchOn]] = {
    "netgain": _netgain,
    "vllm": _vllm,
    "llama.cpp": _llama_cpp,
    "sglang": _sglang,
}
