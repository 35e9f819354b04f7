"""How each engine is told to draft with a model or with heads, and with which versions that was tried."""

import json
from collections.abc import Mapping

from netgain.deciding.technique.prediction import Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.errors import UsageError

_VLLM = "0.32.0 (vllm/config/speculative.py)"
_SGLANG = "0.5.18 (sgl-project/sglang at d315eb725044)"
_SGLANG_BLOCKS = "0.5.23 (sglang/srt/arg_groups/speculative_hook.py)"
_LLAMA_CPP = "0.5.0-dev (0c1e570)"
_NETGAINS_OWN = ("feature", "medusa")
_VLLM_METHODS: Mapping[str, str] = {
    "eagle": "eagle",
    "eagle3": "eagle3",
    "hf-medusa": "medusa",
    "dflash": "dflash",
    "dspark": "dspark",
    "mtp": "mtp",
}
_SGLANG_ALGORITHMS: Mapping[str, str] = {"eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN"}
_LLAMA_TYPES: Mapping[str, str] = {"eagle3": "draft-eagle3", "mtp": "draft-mtp"}


def model_switch(engine: str, setting: Setting) -> SwitchOn:
    """`setting` has k, draft and kind. Raises UsageError for an engine without such a switch."""
    source, k = str(setting["draft"]), str(setting["k"])
    match engine:
        case "netgain":
            return _netgain(source, k)
        case "vllm":
            return _vllm("draft_model", source, k)
        case "sglang":
            return _sglang("STANDALONE", source, k)
        case "llama.cpp":
            if not source.endswith(".gguf"):
                raise UsageError(f"llama.cpp reads GGUF files, and the draft {source} is none")
            return _llama_cpp("draft-simple", source, k)
    raise UsageError(f"a draft model has no switch for {engine!r}; known are netgain, vllm, sglang, llama.cpp")


def heads_switch(engine: str, setting: Setting) -> SwitchOn:
    """As `model_switch`; no engine reads every kind of head, and only netgain those that it trained."""
    source, k, kind = str(setting["draft"]), str(setting["k"]), str(setting["kind"])
    if engine == "netgain" and kind in _NETGAINS_OWN:
        return _netgain(source, k)
    if engine == "netgain" and kind == "mtp":
        flags = ("--speculation", "mtp", "--set", f"engine.speculation.k={k}")
        return SwitchOn(engine="netgain", flags=flags, checked_with=("0.1.0",))
    if engine == "vllm" and kind in _VLLM_METHODS:
        return _vllm(_VLLM_METHODS[kind], source, k)
    if engine == "sglang" and kind in _SGLANG_ALGORITHMS:
        return _sglang(_SGLANG_ALGORITHMS[kind], source, k)
    if engine == "sglang" and kind in ("dflash", "dspark"):
        return _sglang_block(kind, source, int(k))
    if engine == "llama.cpp" and kind in _LLAMA_TYPES:
        return _llama_cpp(_LLAMA_TYPES[kind], source, k)
    own = " (trained by netgain, whose files no other engine reads)" if kind in _NETGAINS_OWN else ""
    raise UsageError(f"heads of the kind {kind}{own} have no switch for {engine!r}")


def _netgain(source: str, k: str) -> SwitchOn:
    flags = ("--speculation", "draft", "--draft", source, "--set", f"engine.speculation.k={k}")
    return SwitchOn(engine="netgain", flags=flags, checked_with=("0.1.0",))


def _vllm(method: str, source: str, k: str) -> SwitchOn:
    """Modules of the target's own need no file."""
    model = {} if method == "mtp" else {"model": source}
    config = json.dumps({"method": method, **model, "num_speculative_tokens": int(k)})
    started = method == "draft_model"  # tests/deciding/arms/test_real_engines.py
    return SwitchOn(
        engine="vllm",
        flags=("--speculative-config", config),
        checked_with=("0.32.0",) if started else (),
        read_from=None if started else _VLLM,
    )


def _sglang(algorithm: str, source: str, k: str) -> SwitchOn:
    """A breadth of 1 makes its tree of drafts a chain; its number of draft tokens counts the last committed one, too."""
    path = () if algorithm == "NEXTN" else ("--speculative-draft-model-path", source)
    chain = ("--speculative-num-steps", k, "--speculative-eagle-topk", "1")
    flags = (
        *("--speculative-algorithm", algorithm, *path),
        *(*chain, "--speculative-num-draft-tokens", str(int(k) + 1)),
    )
    return SwitchOn(engine="sglang", flags=flags, checked_with=(), read_from=_SGLANG)


def _sglang_block(kind: str, source: str, k: int) -> SwitchOn:
    """A block is drafted in one pass. DFlash's counts the last committed token, too, and DSpark's does not."""
    block = k + 1 if kind == "dflash" else k
    flags = (
        *("--speculative-algorithm", kind.upper(), "--speculative-draft-model-path", source),
        *(f"--speculative-{kind}-block-size", str(block)),
    )
    return SwitchOn(engine="sglang", flags=flags, checked_with=(), read_from=_SGLANG_BLOCKS)


def _llama_cpp(kind: str, source: str, k: str) -> SwitchOn:
    model = () if kind == "draft-mtp" else ("-md", source)
    flags = ("--spec-type", kind, *model, "--spec-draft-n-max", k)
    started = kind == "draft-simple"  # tests/deciding/arms/test_real_engines.py
    return SwitchOn(
        engine="llama.cpp",
        flags=flags,
        checked_with=(_LLAMA_CPP,) if started else (),
        read_from=None if started else f"{_LLAMA_CPP}, llama-server --help",
    )
