"""A model written out as a Hugging Face folder that transformers and vLLM load: how peers and tests get the very weights
that this engine runs."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import Checkpoint
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.load import weight_source
from netgain.serving.model.weights import check_names, expected_shapes

TYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


_LAYER = re.compile(r"^model\.layers\.(\d+)\.")

# Stored types whose every number is one of the type written; fp32 takes them all.
_EXACT: Mapping[str, frozenset[str]] = {"bf16": frozenset({"BF16"}), "fp16": frozenset({"F16"})}


def convert(checkpoint: Checkpoint, target: Path, dtype: str, layers: Sequence[int] | None = None) -> tuple[str, ...]:
    """Write `target` (must not exist or be empty), weights dequantised to one of TYPES; all or nothing. With `layers` only
    these are written, in this order: a smaller model of the same vocabulary, to be trained as a draft.

    Returns the stored types that the written one rounds.
    """
    if dtype not in TYPES:
        raise UsageError(f"dtype {dtype!r} cannot be written; choose one of {', '.join(TYPES)}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} exists already; give a folder that does not, or remove it")
    source = weight_source(checkpoint)
    check_names(source, checkpoint.config)
    kept = range(checkpoint.config.layers) if layers is None else layers
    pruned = _pruned(checkpoint, kept)
    names = {name: _stored_name(name, kept) for name in expected_shapes(pruned.config)}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            folder = Path(scratch) / "model"
            folder.mkdir()
            tensors = {name: source.dense(stored, TYPES[dtype]).contiguous() for name, stored in names.items()}
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            (folder / "model.safetensors").chmod(0o644)  # the library makes it readable by its owner only
            for name, content in _documents(pruned, dtype).items():
                (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            if target.exists():
                target.rmdir()
            shutil.move(folder, target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    stored = {source.kind(name) for name in names.values()}
    return tuple(sorted(stored - _EXACT.get(dtype, stored)))


def layer_numbers(text: str) -> tuple[int, ...]:
    """From "0-3,29". Raises UsageError for anything else."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--layers {text!r} is no list of layers; write it like 0-3,28,29")
        numbers += range(int(first), int(last if dash else first) + 1)
    return tuple(numbers)


def _pruned(checkpoint: Checkpoint, layers: Sequence[int]) -> Checkpoint:
    config = checkpoint.config
    outside = [layer for layer in layers if not 0 <= layer < config.layers]
    if outside or not layers:
        raise UsageError(
            f"layer {outside[0]} is none of the model's, which are 0 to {config.layers - 1}"
            if outside
            else "a model needs a layer; name at least one"
        )
    windows = tuple(config.windows[layer] for layer in layers)
    return replace(checkpoint, config=replace(config, layers=len(layers), windows=windows))


def _stored_name(name: str, layers: Sequence[int]) -> str:
    """How the source calls a tensor of the model that keeps `layers`."""
    return _LAYER.sub(lambda found: f"model.layers.{layers[int(found[1])]}.", name)


def _documents(checkpoint: Checkpoint, dtype: str) -> dict[str, dict[str, Any]]:
    """The folder's JSON files by name."""
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    ends = list(checkpoint.eos)
    ending: Any = ends[0] if len(ends) == 1 else (ends or None)
    special = {"bos_token": config.bos, "eos_token": ends[0] if ends else None}
    named = {name: tokenizer.spelling(token) for name, token in special.items() if token is not None}
    settings: dict[str, Any] = {
        # The class that takes tokenizer.json as it is: a model's own class may rebuild it and lose the digit rule.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.context,
        "clean_up_tokenization_spaces": False,
        **named,
    }
    if checkpoint.template is not None:
        forms = checkpoint.template.sources
        named_forms = [{"name": name, "template": source} for name, source in forms.items()]
        settings["chat_template"] = next(iter(forms.values())) if len(forms) == 1 else named_forms
    return {
        "config.json": {
            **_family(config),
            "hidden_act": "silu",
            "hidden_size": config.hidden,
            "intermediate_size": config.ffn,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "vocab_size": config.vocab,
            "max_position_embeddings": config.context,
            "rope_theta": config.rope.theta,
            "rope_scaling": _rope_scaling(config),
            "rms_norm_eps": config.rms_eps,
            "tie_word_embeddings": config.tied,
            "bos_token_id": config.bos,
            "eos_token_id": ending,
            "torch_dtype": str(TYPES[dtype]).removeprefix("torch."),
        },
        "generation_config.json": {"bos_token_id": config.bos, "eos_token_id": ending},
        "tokenizer.json": dict(tokenizer.spec),
        "tokenizer_config.json": settings,
    }


def _family(config: ModelConfig) -> dict[str, Any]:
    """The model type whose class in transformers computes these facts, with its switches. Raises UsageError if none does."""
    windows = {window for window in config.windows if window is not None}
    kind = config.architecture
    if kind == "llama" and windows:
        kind = "mistral"  # GGUF calls both llama
    if kind == "mimo":
        kind = "qwen2"  # which it is without its MTP modules, and those are not written
    settings: dict[str, Any] = {"model_type": kind, "architectures": [f"{kind.capitalize()}ForCausalLM"]}
    if kind in ("qwen2", "qwen3"):
        layers = ["full_attention" if window is None else "sliding_attention" for window in config.windows]
        settings |= {"use_sliding_window": bool(windows), "sliding_window": max(windows, default=None)}
        settings |= {"layer_types": layers} if windows else {}
    elif kind == "mistral":
        settings["sliding_window"] = max(windows, default=None)
        if windows and None in config.windows:
            raise UsageError("a model with a window in some layers only has no model type in transformers")
    switches = {"attention_bias": config.output_bias, "mlp_bias": config.mlp_bias}
    known = {"llama": ("attention_bias", "mlp_bias"), "qwen3": ("attention_bias",)}.get(kind, ())
    if any(on and name not in known for name, on in switches.items()) or (
        config.qkv_bias != config.output_bias and kind != "qwen2"
    ):
        raise UsageError(f"model type {kind} in transformers has no place for all of this model's biases")
    return settings | {name: switches[name] for name in known}


def _rope_scaling(config: ModelConfig) -> dict[str, Any] | None:
    """The scaling in transformers' words. Factors of single frequencies are longrope's, the same for every length."""
    rope = config.rope
    if rope.kind == "default":
        return None
    settings: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.original_context:
        settings["original_max_position_embeddings"] = rope.original_context
    if rope.kind == "llama3":
        settings |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    elif rope.kind == "yarn":
        settings |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        settings["attention_factor"] = rope.attention_factor
    elif rope.kind == "divided":
        factors = list(rope.divisors)
        settings |= {"rope_type": "longrope", "long_factor": factors, "short_factor": factors}
        settings |= {"attention_factor": rope.attention_factor, "original_max_position_embeddings": config.context}
    return settings
