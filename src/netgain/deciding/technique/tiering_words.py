"""What tells the size of a server's KV where it is missing, and what a prediction of tiers leaves out, in words."""

from netgain.deciding.technique.facts import Facts

_CONFIG = "the config.json of a --model that is a local folder or in the Hugging Face cache, and"
_TOLD = {  # where the room for KV and the bytes of a token are known from
    "vllm": ("vllm:cache_config_info on its /metrics", _CONFIG),
    "sglang": ("its /get_server_info (max_total_num_tokens)", _CONFIG),
    "llama.cpp": ("its /props (slots, and the context of each)", "the metadata of a --model that is a GGUF file"),
}


def size_unknown(facts: Facts) -> str:
    """Which of both facts about the size of KV is missing, and where it would be known from."""
    sizes = {"how much room it has for KV": facts.kv_tokens, "what a token's KV takes": facts.kv_token_bytes}
    says = f"the server does not tell {' and '.join(name for name, size in sizes.items() if size is None)}"
    if facts.engine not in _TOLD:
        return says
    room, token = _TOLD[facts.engine]
    return (
        f"{says}: of {facts.engine} both are asked for when the technique is named (--technique kv-tiers), the room in {room}, a "
        f"token's KV in {token} that keeps the same in all layers, or as you tell it (--kv-token-bytes)"
    )


def not_covered(facts: Facts, gib: float) -> tuple[str, ...]:
    said = [
        "requests that queue behind others' prefill wait less when that is loaded, which is not in the figure",
        "storing is charged as if every request waited for it, which it does not",
    ]
    match facts.tier.kind:
        case "disk":
            said.append(f"the folder must have {gib:g} GiB to spare; what is still in the page cache is read sooner")
        case "lmcache":
            said.append("LMCache's server has a size of its own, which must be as much, and its own way to the device")
        case _:
            said.append(f"the host must have {gib:g} GiB of memory to spare")
    if facts.engine != "netgain":
        said.append(
            f"the rate of transfers is assumed from this machine; {facts.engine}'s go over its own link to the device, and "
            f"it loads "
            "whatever it finds"
        )
    if facts.engine == "llama.cpp":
        said.append(
            "llama.cpp keeps whole prompts and finds the most alike one, so it finds at most what is counted here in blocks"
        )
    return tuple(said)
