"""The shape of a model as data: read from a Hugging Face config.json or from GGUF metadata, refusing by name what this
engine does not compute, so that an unsupported model can never load as a slightly wrong supported one."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netgain.errors import UsageError

_LIMITS = {
    "layers": 1024,
    "hidden": 1 << 20,
    "ffn": 1 << 22,
    "heads": 1 << 14,
    "kv_heads": 1 << 14,
    "head_dim": 4096,
    "vocab": 1 << 24,
    "context": 1 << 30,
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer: RMSNorm, rotary attention with grouped heads, gated SiLU feed-forward, no biases.

    `context` is in tokens; `rope_theta` is the base of unscaled rotary embeddings; `tied` says that the head is the
    embedding. `bos` is None where the model has none. Raises UsageError for a shape that cannot be.
    """

    architecture: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_theta: float
    rms_eps: float
    tied: bool
    bos: int | None
    eos: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
            value = getattr(self, name)
            if not 1 <= value <= limit:
                raise UsageError(f"model configuration: {name} is {value}, outside 1..{limit}")
        if self.heads % self.kv_heads:
            raise UsageError(f"model configuration: {self.heads} heads cannot share {self.kv_heads} KV heads evenly")
        if self.head_dim % 2:
            raise UsageError(f"model configuration: head size {self.head_dim} is odd, rotary embeddings need pairs")
        if not self.rope_theta > 0 or not self.rms_eps > 0:
            raise UsageError(
                f"model configuration: rope_theta {self.rope_theta} and rms_eps {self.rms_eps} must be above 0"
            )

    @property
    def parameters(self) -> int:
        """Weights of the model, a tied head counted once."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        return self.layers * layer + self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def kv_values_per_token(self) -> int:
        """Numbers kept per token over all layers, keys and values; times the size of a number gives bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def config_from_huggingface(folder: Path) -> ModelConfig:
    """From `folder`/config.json, with the end tokens of generation_config.json where it names more."""
    values = read_json(folder / "config.json")
    kind = values.get("model_type")
    if kind != "llama":
        raise UsageError(f"{folder}: model type {kind!r} is not supported; supported: llama (SmolLM2 is one)")
    _refuse_huggingface_extras(folder, values)
    hidden, heads = _integer(folder, values, "hidden_size"), _integer(folder, values, "num_attention_heads")
    generation = folder / "generation_config.json"
    eos = _ids(folder, values.get("eos_token_id"))
    if generation.is_file():
        eos += _ids(folder, read_json(generation).get("eos_token_id"))
    bos = _ids(folder, values.get("bos_token_id"))
    return ModelConfig(
        architecture="llama",
        layers=_integer(folder, values, "num_hidden_layers"),
        hidden=hidden,
        ffn=_integer(folder, values, "intermediate_size"),
        heads=heads,
        kv_heads=_integer(folder, values, "num_key_value_heads", heads),
        head_dim=_integer(folder, values, "head_dim", hidden // max(heads, 1)),
        vocab=_integer(folder, values, "vocab_size"),
        context=_integer(folder, values, "max_position_embeddings", 2048),
        rope_theta=_number(folder, _rope(values), "rope_theta", 10000.0),
        rms_eps=_number(folder, values, "rms_norm_eps", 1e-6),
        tied=values.get("tie_word_embeddings", False) is True,
        bos=bos[0] if bos else None,
        eos=tuple(dict.fromkeys(eos)),
    )


def config_from_gguf(where: Path, metadata: Mapping[str, Any], tied: bool) -> ModelConfig:
    """From GGUF metadata; `tied` is whether the file lacks a head of its own (GGUF has no key for it)."""
    kind = metadata.get("general.architecture")
    if kind != "llama":
        raise UsageError(f"{where}: GGUF architecture {kind!r} is not supported; supported: llama")
    values = {key.removeprefix("llama."): value for key, value in metadata.items() if key.startswith("llama.")}
    _refuse_gguf_extras(where, values)
    hidden, heads = _integer(where, values, "embedding_length"), _integer(where, values, "attention.head_count")
    head_dim = _integer(where, values, "attention.key_length", hidden // max(heads, 1))
    for key, name in (("rope.dimension_count", "partial rotary embeddings"), ("attention.value_length", "value size")):
        if values.get(key, head_dim) != head_dim:
            raise UsageError(f"{where}: {name} ({key} {values[key]}, head size {head_dim}) are not supported")
    tokens = metadata.get("tokenizer.ggml.tokens")
    counted = len(tokens) if isinstance(tokens, list) else None
    bos = _ids(where, metadata.get("tokenizer.ggml.bos_token_id"))
    eos = [
        token
        for key in ("eos_token_id", "eot_token_id", "eom_token_id")
        for token in _ids(where, metadata.get(f"tokenizer.ggml.{key}"))
    ]
    return ModelConfig(
        architecture="llama",
        layers=_integer(where, values, "block_count"),
        hidden=hidden,
        ffn=_integer(where, values, "feed_forward_length"),
        heads=heads,
        kv_heads=_integer(where, values, "attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab=_integer(where, values, "vocab_size", counted),
        context=_integer(where, values, "context_length"),
        rope_theta=_shortest(_number(where, values, "rope.freq_base", 10000.0)),
        rms_eps=_shortest(_number(where, values, "attention.layer_norm_rms_epsilon", None)),
        tied=tied,
        bos=bos[0] if bos else None,
        eos=tuple(dict.fromkeys(eos)),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; UsageError names a missing or broken file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds a JSON {type(values).__name__}, expected an object")
    return values


def _rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings, which newer files keep in `rope_parameters` and older ones at the top and in `rope_scaling`."""
    nested = [values[key] for key in ("rope_scaling", "rope_parameters") if isinstance(values.get(key), dict)]
    merged = {key: values[key] for key in ("rope_theta", "partial_rotary_factor") if key in values}
    for part in nested:
        merged.update(part)
    return merged


def _refuse_huggingface_extras(where: Path, values: Mapping[str, Any]) -> None:
    rope = _rope(values)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UsageError(f"{where}: RoPE scaling {kind!r} is not supported; supported: none")
    if "factor" in rope and rope["factor"] not in (None, 1, 1.0):
        raise UsageError(f"{where}: RoPE scaling factor {rope['factor']} without a type is not supported")
    plain: dict[str, tuple[Any, ...]] = {
        "attention_bias": (None, False),
        "mlp_bias": (None, False),
        "hidden_act": (None, "silu"),
        "sliding_window": (None,),
        "quantization_config": (None,),
        "is_encoder_decoder": (None, False),
    }
    for key, allowed in plain.items():
        if values.get(key) not in allowed:
            raise UsageError(f"{where}: {key} = {values[key]!r} is not supported; supported: {allowed[-1]!r}")
    if rope.get("partial_rotary_factor", 1) not in (None, 1, 1.0):
        raise UsageError(f"{where}: partial_rotary_factor {rope['partial_rotary_factor']} is not supported")


def _refuse_gguf_extras(where: Path, values: Mapping[str, Any]) -> None:
    kind = values.get("rope.scaling.type", "none")
    if kind != "none":
        raise UsageError(f"{where}: RoPE scaling {kind!r} is not supported; supported: none")
    for key in ("rope.scale_linear", "rope.scaling.factor", "rope.scaling.attn_factor"):
        if values.get(key, 1) not in (0, 1):
            raise UsageError(f"{where}: RoPE scaling ({key} {values[key]}) is not supported; supported: none")
    for key in ("expert_count", "attention.sliding_window"):
        if values.get(key, 0):
            raise UsageError(f"{where}: {key} {values[key]} is not supported; supported: none")


def _integer(where: Path, values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = values.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(
            f"{where}: {key} is {'missing' if value is None else repr(value)[:80]}, expected a whole number"
        )
    return value


def _number(where: Path, values: Mapping[str, Any], key: str, default: float | None) -> float:
    value = values.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise UsageError(f"{where}: {key} is {'missing' if value is None else repr(value)[:80]}, expected a number")
    return float(value)


def _ids(where: Path, value: Any) -> list[int]:
    """Token ids written as nothing, one number or a list."""
    if value is None:
        return []
    ids = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise UsageError(f"{where}: token ids {value!r} are not whole numbers")
    return ids


def _shortest(value: float) -> float:
    """The decimal that a float32 was written from: GGUF stores 1e-5 as 9.999999747378752e-06."""
    try:
        return float(str(np.float32(struct.unpack("<f", struct.pack("<f", value))[0])))
    except (OverflowError, struct.error):
        return value
