"""How many devices an arm was written to occupy: said outright, or by flags and variables of the engine. Nothing is assumed."""

import math
from collections.abc import Mapping, Sequence

from netgain.deciding.experiment.arms.starting import Starting, given_variables, given_words, option
from netgain.measuring.observe.names import Engine

# vLLM 0.32 (engine/arg_utils.py) and SGLang 0.5.18 (server_args.py): ranks multiply, one device each.
_RANKS: Mapping[Engine, tuple[tuple[str, ...], ...]] = {
    "vllm": (
        ("--tensor-parallel-size", "-tp"),
        ("--pipeline-parallel-size", "-pp"),
        ("--data-parallel-size", "-dp"),
    ),
    "sglang": (
        ("--tensor-parallel-size", "--tp-size", "--tp"),
        ("--pipeline-parallel-size", "--pp-size", "--pp"),
        ("--data-parallel-size", "--dp-size", "--dp"),
    ),
}
_SHARED = "--enable-dp-attention"  # SGLang's data parallel ranks of attention are the tensor ranks
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def devices_written(engine: Engine | None, starting: Starting, flags: Sequence[str] = ()) -> int | None:
    """None where neither the user, nor a flag of ranks, nor CUDA_VISIBLE_DEVICES tells. Ranks that are not named are one beside
    those that are. Several visible devices tell only of llama.cpp, which spreads over all that it sees; others take as many as
    they have ranks."""
    if starting.devices is not None:
        return starting.devices
    words = given_words(starting, flags)
    if engine is not None and engine in _RANKS:
        ranks = [_value(words, names) for names in _RANKS[engine]]
        if _SHARED in map(option, words):
            ranks[2] = None
        if any(rank is not None for rank in ranks):
            sizes = [_whole(rank) for rank in ranks if rank is not None]
            return None if None in sizes else math.prod(size for size in sizes if size is not None)
    visible = given_variables(words, starting.environment).get(_VISIBLE)
    seen = len([name for name in visible.split(",") if name.strip()]) if visible else 0
    spread = engine == "llama.cpp" and _value(words, ("-sm", "--split-mode")) != "none"
    return seen if seen == 1 or (seen and spread) else None


def _value(words: Sequence[str], names: Sequence[str]) -> str | None:
    """What the last of these options is given."""
    found = None
    for place, word in enumerate(words):
        if option(word) in names:
            _, equals, value = word.partition("=")
            found = value if equals else next(iter(words[place + 1 : place + 2]), "")
    return found


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) > 0 else None
