"""What `netgain model inspect` says about a model: as lines, and as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netgain.serving.model.checkpoint import Checkpoint
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.digest import files_digest
from netgain.serving.model.kv import DTYPES as KV_DTYPES
from netgain.serving.model.weights import DTYPES, WeightSource, computed_types, matrix_bytes, stored_types
from netgain.serving.runtime.quality import kv_bytes_per_token


def as_json(checkpoint: Checkpoint, weights: WeightSource, notes: Sequence[str]) -> dict[str, Any]:
    """The facts with names that scripts can rely on; sizes in bytes."""
    config = checkpoint.config
    return {
        "model": checkpoint.name,
        "path": str(checkpoint.path),
        "family": config.architecture,
        "layers": config.layers,
        "hidden": config.hidden,
        "feed_forward": config.ffn,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "windows": list(config.windows),
        "context": config.context,
        "rope": str(config.rope),
        "vocabulary": config.vocab,
        "tied": config.tied,
        "parameters": config.parameters,
        "tensor_types": stored_types(weights),
        "computed": {dtype: sorted(set(computed_types(weights, config, dtype).values())) for dtype in DTYPES},
        "weight_bytes": {dtype: matrix_bytes(weights, config, dtype) for dtype in DTYPES},
        "kv_bytes_per_token": {name: kv_bytes_per_token(config, name) for name in KV_DTYPES},
        "bos": config.bos,
        "eos": list(checkpoint.eos),
        "chat_template": checkpoint.template is not None,
        "weights_digest": files_digest(weights.files),
        "tokenizer_digest": checkpoint.tokenizer.digest,
        "notes": list(notes),
    }


def as_lines(checkpoint: Checkpoint, weights: WeightSource, notes: Sequence[str]) -> list[str]:
    """A label and its value in each."""
    config = checkpoint.config
    facts = [
        ("model", checkpoint.name),
        ("path", str(checkpoint.path)),
        ("family", config.architecture),
        ("shape", f"{config.layers} layers, hidden {config.hidden}, feed-forward {config.ffn}"),
        ("heads", f"{config.heads} query, {config.kv_heads} key/value, size {config.head_dim}"),
        ("attention", _attention(config)),
        ("context", f"{config.context} tokens"),
        ("RoPE", str(config.rope)),
        ("vocabulary", f"{config.vocab} tokens, head {'tied to the embedding' if config.tied else 'of its own'}"),
        ("parameters", f"{config.parameters:,}"),
        ("tensor types", ", ".join(f"{kind} x {count}" for kind, count in stored_types(weights).items())),
        ("computed as", "+".join(sorted(set(computed_types(weights, config, "auto").values())))),
        *((f"weights, {dtype}", f"{matrix_bytes(weights, config, dtype) / 1e6:.1f} MB") for dtype in DTYPES),
        (
            "KV per token",
            ", ".join(f"{kv_bytes_per_token(config, n):,} {'bytes ' * (not i)}in {n}" for i, n in enumerate(KV_DTYPES)),
        ),
        ("start token", _tokens(checkpoint, () if config.bos is None else (config.bos,))),
        ("end tokens", _tokens(checkpoint, checkpoint.eos)),
        ("chat template", "present" if checkpoint.template else "absent"),
        ("weights digest", files_digest(weights.files)),
        ("tokenizer digest", checkpoint.tokenizer.digest),
        *(("note", note) for note in notes),
    ]
    width = max(len(label) for label, _ in facts)
    return [f"{label:{width}}  {value}" for label, value in facts]


def _tokens(checkpoint: Checkpoint, ids: Sequence[int]) -> str:
    """Ids with their spellings."""
    return ", ".join(f"{token} ({checkpoint.tokenizer.spelling(token)})" for token in ids) or "none"


def _attention(config: ModelConfig) -> str:
    """Window, biases and head norms in words."""
    sizes = [window for window in config.windows if window is not None]
    if not sizes:
        text = "all positions before"
    else:
        which = "all" if len(sizes) == config.layers else f"{len(sizes)} of {config.layers}"
        text = f"window of {max(sizes)} positions in {which} layers"
    biased = [name for name in ("qkv", "output", "mlp") if getattr(config, f"{name}_bias")]
    return text + (f", bias on {' and '.join(biased)}" if biased else "") + (", heads normalised" * config.qk_norm)
