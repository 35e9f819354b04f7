"""A model written out as a Hugging Face folder that transformers and vLLM load: how peers and tests get the very weights
that this engine runs."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import Checkpoint
from netgain.serving.model.load import weight_source
from netgain.serving.model.weights import check_names, expected_shapes

TYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def convert(checkpoint: Checkpoint, target: Path, dtype: str) -> None:
    """Write `target` (must not exist or be empty), weights dequantised to "fp32" or "bf16"; all or nothing."""
    if dtype not in TYPES:
        raise UsageError(f"dtype {dtype!r} cannot be written; choose one of {', '.join(TYPES)}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} exists already; give a folder that does not, or remove it")
    source = weight_source(checkpoint)
    check_names(source, checkpoint.config)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            folder = Path(scratch) / "model"
            folder.mkdir()
            tensors = {
                name: source.dense(name).to(TYPES[dtype]).contiguous() for name in expected_shapes(checkpoint.config)
            }
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            (folder / "model.safetensors").chmod(0o644)  # the library makes it readable by its owner only
            for name, content in _documents(checkpoint, dtype).items():
                (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            if target.exists():
                target.rmdir()
            shutil.move(folder, target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error


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
        settings["chat_template"] = checkpoint.template.source
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": config.hidden,
            "intermediate_size": config.ffn,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "vocab_size": config.vocab,
            "max_position_embeddings": config.context,
            "rope_theta": config.rope_theta,
            "rms_norm_eps": config.rms_eps,
            "tie_word_embeddings": config.tied,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": config.bos,
            "eos_token_id": ending,
            "torch_dtype": {"fp32": "float32", "bf16": "bfloat16"}[dtype],
        },
        "generation_config.json": {"bos_token_id": config.bos, "eos_token_id": ending},
        "tokenizer.json": dict(tokenizer.spec),
        "tokenizer_config.json": settings,
    }
