"""How each engine is told to decode by suffixes, and with which versions that was tried."""

import json
from collections.abc import Callable, Mapping

from netgain.deciding.technique.prediction import Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.errors import UsageError

_WITHOUT = {
    "llama.cpp": "it looks up n-grams only (technique ngram)",
    "sglang": "it looks up n-grams only (technique ngram)",
}


def suffix_switch(engine: str, setting: Setting) -> SwitchOn:
    """`setting` has k and factor. Raises UsageError for an engine without such a switch."""
    if engine in _WITHOUT:
        raise UsageError(f"suffix decoding has no switch for {engine!r}: {_WITHOUT[engine]}")
    if engine not in _SWITCHES:
        raise UsageError(f"suffix decoding has no switch for {engine!r}; known are {', '.join(_SWITCHES)}")
    return _SWITCHES[engine](setting)


def _netgain(setting: Setting) -> SwitchOn:
    flags = (
        *("--speculation", "suffix"),
        *("--set", f"engine.speculation.k={setting['k']}"),
        *("--set", f"engine.speculation.suffix.factor={setting['factor']}"),
    )
    return SwitchOn(engine="netgain", flags=flags, checked_with=("0.1.0",))


def _vllm(setting: Setting) -> SwitchOn:
    """Without that package it ends and says so."""
    config = {
        "method": "suffix",
        "num_speculative_tokens": setting["k"],
        "suffix_decoding_max_spec_factor": setting["factor"],
    }
    return SwitchOn(
        engine="vllm",
        flags=("--speculative-config", json.dumps(config)),
        checked_with=("0.32.0",),
        needs="arctic-inference 0.1.1",
    )


_SWITCHES: Mapping[str, Callable[[Setting], SwitchOn]] = {"netgain": _netgain, "vllm": _vllm}
