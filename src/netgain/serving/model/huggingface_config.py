"""config.json of a Hugging Face folder: each family's own defaults and switches turned into the facts of a ModelConfig,
whatever this engine does not compute refused by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.fields import Fields, read_json
from netgain.serving.model.rope import rope_from_huggingface

Windows = tuple[int | None, ...]


class Family(NamedTuple):
    """What a model type's class in transformers fixes or reads in its own way. `windows` takes the number of layers."""

    windows: Callable[[Fields, int], Windows]
    qkv_bias: bool = False  # always there; else as `attention_bias` says, where the family reads that
    attention_bias: bool = False  # the family reads this switch, for query, key, value and output alike
    mlp_bias: bool = False  # the family reads this switch
    qk_norm: bool = False
    head_dim: int | None = None  # where the file gives none; None: hidden size over heads
    kv_heads_default: bool = False  # a missing num_key_value_heads means one per query head
    context: int | None = None
    mtp: bool = False  # the family reads how many modules foresee further tokens


def config_from_huggingface(folder: Path) -> ModelConfig:
    """From `folder`/config.json, with the end tokens of generation_config.json where it names more."""
    path = folder / "config.json"
    fields = Fields(path, read_json(path))
    kind = fields.values.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise UsageError(
            f"{path}: model type {kind!r} is not supported; supported: {', '.join(FAMILIES)} (SmolLM2 is a llama)"
        )
    fields.refuse_unless("hidden_act", "silu")
    fields.refuse_unless("quantization_config")
    fields.refuse_unless("is_encoder_decoder", False)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    layers = fields.integer("num_hidden_layers")
    if not 1 <= layers <= 1024:  # as ModelConfig says, before anything is made per layer
        raise UsageError(f"{path}: layers is {layers}, outside 1..1024")
    head_dim = fields.integer("head_dim", family.head_dim or hidden // max(heads, 1))
    rope, context, notes = rope_from_huggingface(
        fields, fields.integer("max_position_embeddings", family.context), head_dim
    )
    bias = family.attention_bias and fields.flag("attention_bias", False)
    eos = fields.ids("eos_token_id")
    if (generation := folder / "generation_config.json").is_file():
        eos += Fields(generation, read_json(generation)).ids("eos_token_id")
    bos = fields.ids("bos_token_id")
    return ModelConfig(
        architecture=str(kind),
        layers=layers,
        hidden=hidden,
        ffn=fields.integer("intermediate_size"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads if family.kv_heads_default else None),
        head_dim=head_dim,
        vocab=fields.integer("vocab_size"),
        context=context,
        rope=rope,
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        tied=fields.flag("tie_word_embeddings", False),
        bos=bos[0] if bos else None,
        eos=tuple(dict.fromkeys(eos)),
        windows=tuple(None if size is None or size >= context else size for size in family.windows(fields, layers)),
        qkv_bias=family.qkv_bias or bias,
        output_bias=bias,
        mlp_bias=family.mlp_bias and fields.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
        mtp=fields.integer("num_nextn_predict_layers", 0) if family.mtp else 0,
        notes=notes,
    )


def _no_window(fields: Fields, layers: int) -> Windows:
    fields.refuse_unless("sliding_window")
    fields.refuse_unless("use_sliding_window", False)
    return (None,) * layers


def _one_window(fields: Fields, layers: int) -> Windows:
    """Mistral: every layer has the window; null switches it off, and a file without the field means the class's 4096."""
    window = _window(fields) if fields.values.get("sliding_window", ...) is not None else None
    if "layer_types" in fields:
        expected = "full_attention" if window is None else "sliding_attention"
        for kind in fields.texts("layer_types", layers):
            if kind != expected:
                raise UsageError(
                    f"{fields.where}: layer_types names {kind!r}, but sliding_window makes every layer {expected}"
                )
    return (window,) * layers


def _switched_window(fields: Fields, layers: int) -> Windows:
    """Qwen: `use_sliding_window`, then `layer_types`, or without them every layer from `max_window_layers` on."""
    used = fields.flag("use_sliding_window", False)
    window = _window(fields) if used and fields.values.get("sliding_window", ...) is not None else None
    if "layer_types" not in fields:
        first = fields.integer("max_window_layers", 28)
        return tuple(window if layer >= first else None for layer in range(layers))
    kinds = fields.texts("layer_types", layers)
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise UsageError(
                f"{fields.where}: layer_types names {kind!r}; supported: full_attention, sliding_attention"
            )
        if kind == "sliding_attention" and window is None:
            raise UsageError(f"{fields.where}: layer_types names 'sliding_attention', but no sliding_window is used")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _window(fields: Fields) -> int:
    window = fields.integer("sliding_window", 4096)
    if window < 1:
        raise UsageError(f"{fields.where}: sliding_window is {window}, expected at least 1")
    return window


FAMILIES: Mapping[str, Family] = {
    "llama": Family(_no_window, attention_bias=True, mlp_bias=True, kv_heads_default=True, context=2048),
    "mistral": Family(_one_window),
    "qwen2": Family(_switched_window, qkv_bias=True),
    "mimo": Family(_switched_window, qkv_bias=True, mtp=True),  # a Qwen2 with modules behind it, whose code is its own
    "qwen3": Family(_switched_window, attention_bias=True, qk_norm=True, head_dim=128),
}
