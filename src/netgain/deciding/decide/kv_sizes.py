"""What a token's KV takes by the files of a model: the config.json of its folder or of the Hugging Face cache, or a GGUF's
metadata."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from netgain.cost.kv import token_bytes
from netgain.deciding.technique.kv_int8 import VALUE_BYTES
from netgain.errors import UsageError
from netgain.serving.model.gguf import GgufFile

# llama.cpp's types for KV (ggml/src/ggml-common.h): bytes of a block over its values
LLAMA_VALUE_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q4_0": 18 / 32,
    "q4_1": 20 / 32,
    "q5_0": 22 / 32,
    "q5_1": 24 / 32,
    "iq4_nl": 18 / 32,
}
_GGUF_PLAIN = ("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "smollm3", "granite")  # the same in all layers


def model_config(model: str) -> dict[str, Any] | None:
    """The config.json in the folder `model`, or of the Hugging Face id where it was loaded before. None where there is none."""
    for folder in (Path(model), *_snapshots(model)):
        try:
            return msgspec.json.decode((folder / "config.json").read_bytes(), type=dict[str, Any])
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
            continue
    return None


def kv_token_bytes(model: str, dtype: str | None) -> int | None:
    """Of all layers together. None where nothing tells, or where layers differ."""
    config = None if dtype not in VALUE_BYTES else model_config(model)
    if dtype is None or config is None or not _same_in_all_layers(config):
        return None
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size", "num_key_value_heads", "head_dim")
    layers, heads, hidden, kv_heads, size = (config.get(name) for name in names)
    if size is None and _whole(hidden) and _whole(heads):
        size = hidden // heads
    kv_heads = heads if kv_heads is None else kv_heads
    if not (_whole(layers) and _whole(kv_heads) and _whole(size)):
        return None
    return int(token_bytes(layers, kv_heads, size, VALUE_BYTES[dtype]))


def gguf_token_bytes(model: str, key_type: str, value_type: str) -> int | None:
    """The same of a GGUF file, with llama.cpp's types of keys and of values. None where it cannot be read, for models whose
    layers may differ, and for other types."""
    if key_type not in LLAMA_VALUE_BYTES or value_type not in LLAMA_VALUE_BYTES:
        return None
    try:
        told = GgufFile(Path(model)).metadata
    except (OSError, UsageError):
        return None
    kind = told.get("general.architecture")
    if kind not in _GGUF_PLAIN or told.get(f"{kind}.attention.sliding_window"):
        return None
    heads, hidden = told.get(f"{kind}.attention.head_count"), told.get(f"{kind}.embedding_length")
    layers, kv_heads = told.get(f"{kind}.block_count"), told.get(f"{kind}.attention.head_count_kv", heads)
    size = hidden // heads if _whole(hidden) and _whole(heads) else None
    keys, values = (told.get(f"{kind}.attention.{part}_length", size) for part in ("key", "value"))
    if not (_whole(layers) and _whole(kv_heads) and _whole(keys) and _whole(values)):
        return None
    return round(layers * kv_heads * (keys * LLAMA_VALUE_BYTES[key_type] + values * LLAMA_VALUE_BYTES[value_type]))


def _snapshots(model: str) -> list[Path]:
    """Where the Hugging Face cache has that id, its main revision first."""
    if model.count("/") != 1 or model.startswith(("/", ".")):
        return []
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{model.replace('/', '--')}"
    try:
        main = (cache / "refs/main").read_text().strip()
    except (OSError, ValueError):
        return []
    return [cache / "snapshots" / main]


def _whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and value > 0


def _same_in_all_layers(config: Mapping[str, Any]) -> bool:
    """Whether every layer keeps keys and values of every token: no latent, no window, no layers of another kind."""
    kinds = config.get("layer_types") or []
    plain = isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)
    window = config.get("sliding_window") and config.get("use_sliding_window", True)
    return plain and not (window or config.get("kv_lora_rank") or config.get("layers_block_type"))
