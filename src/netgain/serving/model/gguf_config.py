"""GGUF metadata turned into the facts of a ModelConfig; what the format leaves to the presence of a tensor is read from
there, and whatever this engine does not compute is refused by its key."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.fields import Fields, shortest
from netgain.serving.model.gguf import GgufFile
from netgain.serving.model.rope import rope_from_gguf

ARCHITECTURES = ("llama", "qwen2", "qwen3")

# Keys that change the computation, and the values with which they do not.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "expert_count": (0,),
        "attention.causal": (True,),
        "attention.scale": (0,),
        "attention.clamp_kqv": (0,),
        "attention.max_alibi_bias": (0,),
        "attn_logit_softcapping": (0,),
        "final_logit_softcapping": (0,),
        "logit_scale": (1, 0),
        "residual_scale": (1, 0),
        "embedding_scale": (1, 0),
        "use_parallel_residual": (False,),
    }
)


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """A head of its own is what a file with `output.weight` has; GGUF has no other word for a tied one."""
    _refuse_parts(file)
    where, kind = file.path, file.metadata.get("general.architecture")
    if kind not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise UsageError(f"{where}: GGUF architecture {kind!r} is not supported; supported: {supported}")
    start = f"{kind}."
    fields = Fields(where, {k.removeprefix(start): v for k, v in file.metadata.items() if k.startswith(start)})
    for key, neutral in _NEUTRAL.items():
        fields.refuse_unless(key, *neutral)
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", hidden // max(heads, 1))
    for key, name in (("rope.dimension_count", "partial rotary embeddings"), ("attention.value_length", "value size")):
        if fields.integer(key, head_dim) != head_dim:
            raise UsageError(f"{where}: {name} ({key} {fields.values[key]}, head size {head_dim}) are not supported")
    rope, context, notes = rope_from_gguf(
        fields, lambda name: _factors(file, name, head_dim), fields.integer("context_length"), head_dim
    )
    layers = fields.integer("block_count")
    if not 1 <= layers <= 1024:  # as ModelConfig says, before anything is made per layer
        raise UsageError(f"{where}: layers is {layers}, outside 1..1024")
    tokenizer = Fields(where, file.metadata)
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    bos = tokenizer.ids("tokenizer.ggml.bos_token_id")
    eos = [
        token
        for name in ("eos_token_id", "eot_token_id", "eom_token_id")
        for token in tokenizer.ids(f"tokenizer.ggml.{name}")
    ]
    return ModelConfig(
        architecture=str(kind),
        layers=layers,
        hidden=hidden,
        ffn=fields.integer("feed_forward_length"),
        heads=heads,
        kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab=fields.integer("vocab_size", len(tokens) if isinstance(tokens, list) else None),
        context=context,
        rope=rope,
        rms_eps=shortest(fields.number("attention.layer_norm_rms_epsilon")),
        tied="output.weight" not in file.tensors,
        bos=bos[0] if bos else None,
        eos=tuple(dict.fromkeys(eos)),
        windows=_windows(fields, layers, context),
        qkv_bias=kind == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=kind == "qwen3",
        notes=notes,
    )


def _refuse_parts(file: GgufFile) -> None:
    parts = file.metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise UsageError(
            f"{file.path} is one of {parts} parts of a model (split.count), and parts are not read together: "
            "join them with llama.cpp's 'gguf-split --merge'"
        )


def _windows(fields: Fields, layers: int, context: int) -> tuple[int | None, ...]:
    """`attention.sliding_window` for every layer, or for those that a pattern marks. Most Mistral files have none."""
    window = fields.integer("attention.sliding_window", 0)
    if window < 0:
        raise UsageError(f"{fields.where}: attention.sliding_window is {window}, expected 0 or more")
    pattern = fields.values.get("attention.sliding_window_pattern", [True] * layers)
    marks = isinstance(pattern, list) and len(pattern) == layers and all(isinstance(mark, bool) for mark in pattern)
    if not marks:
        raise fields.wrong("attention.sliding_window_pattern", f"a list of {layers} marks", pattern)
    return tuple(window if mark and 0 < window < context else None for mark in pattern)


def _factors(file: GgufFile, name: str, head_dim: int) -> tuple[float, ...] | None:
    """The frequency factors in a tensor, one per pair of a head's dimensions; None where the file has no such tensor."""
    if name not in file.tensors:
        return None
    if file.tensors[name].shape != (head_dim // 2,):
        raise UsageError(
            f"{file.path}: {name} is {file.tensors[name].shape}, expected {(head_dim // 2,)} for head size {head_dim}"
        )
    return tuple(shortest(value) for value in file.array(name).tolist())
