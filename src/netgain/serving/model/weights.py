"""Where a model's matrices come from: safetensors and GGUF behind one face that speaks Hugging Face tensor names; which
tensors a model has, and in which type each is kept; whatever is missing, short or left over is refused by name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.kernels.protocol import Activations
from netgain.serving.model.quantise import GROUP, Encode

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
MTP = "model.mtp_layers."  # what drafts/mtp.py reads
DTYPES = ("auto", "fp32", "bf16", "fp16", "int8", "int4")
FOUR_BITS = ("Q4_0", "Q4_1")
ACTIVATIONS = ("auto", "fp32", "bf16", "int8")
QUANTISED = ("int8", "int4")  # those under which any matrix is rounded to blocks
TORCH_TYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
)


@dataclass(frozen=True)
class Blocks:
    """A quantised matrix [out, in] as GGUF stores it: `kind` Q4_1 or Q8_0, `data` uint8 [out, bytes of a row]."""

    kind: str
    data: Tensor
    shape: tuple[int, int]


class WeightSource(Protocol):
    """The tensors of one checkpoint by Hugging Face name, rotary rows in Hugging Face order (rotated halves)."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the weights, in a fixed order."""
        ...

    def names(self) -> frozenset[str]: ...

    def kind(self, name: str) -> str:
        """The stored type, such as F32, BF16 or Q4_1."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dense(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """In a float type, on the CPU: `dtype`, else as stored, else (quantised blocks) float32. See `narrowed`."""
        ...

    def blocks(self, name: str, kind: str, encode: Encode) -> Blocks:
        """A matrix in blocks of `kind` (Q4_0, Q4_1, Q8_0): as stored where it is stored so, else rounded by `encode` (see
        quantise.py). Raises UsageError for numbers that blocks cannot keep."""
        ...


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this shape has, by Hugging Face name; a tied head is not among them."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab, config.hidden), NORM: (config.hidden,)}
    if not config.tied:
        shapes[HEAD] = (config.vocab, config.hidden)
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for layer in range(config.layers):
        start = f"model.layers.{layer}."
        shapes |= {
            f"{start}input_layernorm.weight": (config.hidden,),
            f"{start}self_attn.q_proj.weight": (query, config.hidden),
            f"{start}self_attn.k_proj.weight": (key, config.hidden),
            f"{start}self_attn.v_proj.weight": (key, config.hidden),
            f"{start}self_attn.o_proj.weight": (config.hidden, query),
            f"{start}post_attention_layernorm.weight": (config.hidden,),
            f"{start}mlp.gate_proj.weight": (config.ffn, config.hidden),
            f"{start}mlp.up_proj.weight": (config.ffn, config.hidden),
            f"{start}mlp.down_proj.weight": (config.hidden, config.ffn),
        }
        if config.qkv_bias:
            shapes |= {f"{start}self_attn.{part}_proj.bias": (query if part == "q" else key,) for part in "qkv"}
        if config.output_bias:
            shapes[f"{start}self_attn.o_proj.bias"] = (config.hidden,)
        if config.mlp_bias:
            shapes |= {f"{start}mlp.{part}_proj.bias": (config.ffn,) for part in ("gate", "up")}
            shapes[f"{start}mlp.down_proj.bias"] = (config.hidden,)
        if config.qk_norm:
            shapes |= {f"{start}self_attn.{part}_norm.weight": (config.head_dim,) for part in "qk"}
    return shapes


def check_names(source: WeightSource, config: ModelConfig) -> tuple[str, ...]:
    """Notes on what is ignored; UsageError names tensors that are missing, of another shape, or not understood."""
    expected, present = expected_shapes(config), source.names()
    missing = [name for name in expected if name not in present]
    if missing:
        raise UsageError(f"{source.files[0]}: tensor {some(missing)} missing; the checkpoint is incomplete")
    for name, shape in expected.items():
        if source.shape(name) != shape:
            raise UsageError(f"{source.files[0]}: {name} is {source.shape(name)}, the configuration says {shape}")
        if source.kind(name) not in _KEPT:
            supported = ", ".join(TORCH_TYPES)
            raise UsageError(
                f"{source.files[0]}: tensor {name} has type {source.kind(name)}; supported: {supported}, and GGUF's blocks"
            )
    ignored = {name for name in present if name.endswith(".rotary_emb.inv_freq")}  # old checkpoints; always derived
    if config.mtp:
        ignored |= {name for name in present if name.startswith(MTP)}
    left = sorted(present - expected.keys() - ignored - {HEAD})
    if left:
        raise UsageError(f"{source.files[0]}: tensor {some(left)} not used by architecture {config.architecture}")
    if config.tied and HEAD in present:
        return (f"{HEAD} is ignored: the configuration ties the head to the embedding",)
    return ()


def stored_types(source: WeightSource) -> dict[str, int]:
    """How many tensors are stored in each type, the most frequent first."""
    return dict(Counter(source.kind(name) for name in sorted(source.names())).most_common())


def computed_type(source: WeightSource, name: str, dtype: str) -> str:
    """The type in which matrix `name` is kept and multiplied under a compute type of DTYPES.

    "auto" keeps numbers as they are stored: blocks where a kernel takes them, other blocks dequantised to bfloat16. "int8"
    and "int4" are blocks of 32, but bfloat16 where the inputs do not divide into them; under "int4" embedding and head stay
    int8 unless they are stored in four bits, because rounding them costs a third of what all other matrices together cost.
    Sums are float32 always. Raises UsageError for another compute type.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
    kept = _KEPT[source.kind(name)]
    if dtype == "auto":
        return kept
    if dtype in QUANTISED:
        if source.shape(name)[1] % GROUP:
            return "BF16"
        if dtype == "int4" and kept in FOUR_BITS:
            return kept
        return "Q8_0" if dtype == "int8" or name in (EMBEDDING, HEAD) else "Q4_1"
    return {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}[dtype]


def activations_of(kind: str, activations: str, name: str) -> Activations:
    """To what the activations that meet matrix `name`, kept in `kind`, are rounded under a setting of ACTIVATIONS. "auto" is
    int8 for blocks and float32 for other types; raises UsageError for what does not go with `kind`."""
    own: Activations = "fp32" if kind in TORCH_TYPES else "int8"
    if activations in ("auto", own):
        return own
    if activations == "fp32":
        return "fp32"
    if activations == "bf16" and kind == "BF16":
        return "bf16"
    if activations not in ACTIVATIONS:
        raise UsageError(f"activations {activations!r} are not supported; supported: {', '.join(ACTIVATIONS)}")
    wanted = "bf16 weights (dtype bf16)" if activations == "bf16" else "weights in blocks (dtype int8 or int4)"
    others = "auto, fp32 or bf16" if kind == "BF16" else "auto or fp32"
    raise UsageError(
        f"{activations} activations need {wanted}, and {name} is kept in {kind}: use another dtype, or activations {others}"
    )


def computed_types(source: WeightSource, config: ModelConfig, dtype: str, activations: str = "auto") -> dict[str, str]:
    """The computed type of every matrix, by name. One whose products take other activations than those under "auto" tells them:
    "BF16 x bf16". Raises UsageError as computed_type and activations_of do."""
    types: dict[str, str] = {}
    for name, shape in expected_shapes(config).items():
        if len(shape) != 2:
            continue
        types[name] = kind = computed_type(source, name, dtype)
        try:
            used = activations_of(kind, activations, name)
        except UsageError:
            if name == EMBEDDING and not config.tied:
                continue  # its rows are read, never multiplied
            raise
        if used != activations_of(kind, "auto", name):
            types[name] = f"{kind} x {used}"
    return types


def used_activations(types: Mapping[str, str], config: ModelConfig) -> tuple[str, ...]:
    """What matrices of these computed types are multiplied with, each once."""
    multiplied = {kind for name, kind in types.items() if name != EMBEDDING or config.tied}
    told = (kind.partition(" x ") for kind in multiplied)
    return tuple(sorted({used or activations_of(kind, "auto", kind) for kind, _, used in told}))


def narrowed(values: Tensor, dtype: torch.dtype, name: str, stored: str) -> Tensor:
    """`values` as `dtype`; UsageError if a number that was finite is none in float16, which ends at 65504."""
    result = values.to(dtype)
    if dtype == torch.float16 and stored != "F16" and bool((result.isinf() & values.isfinite()).any()):
        most = float(values[values.isfinite()].abs().max())
        raise UsageError(
            f"{name} ({stored}) holds {most:g}, beyond float16's 65504: serve this model with dtype auto, bf16 or fp32"
        )
    return result


def product_ops(
    source: WeightSource, config: ModelConfig, dtype: str, activations: str = "auto"
) -> tuple[dict[str, int], dict[str, int]]:
    """Operations (a multiplication and an addition are two) of the matrix products, by computed type (see computed_types; in
    lower case): of the layers per computed token, and per token that is chosen those of the head and of what follows the
    last layer's attention, which no other token needs."""
    layers: Counter[str] = Counter()
    head: Counter[str] = Counter()
    last = f"model.layers.{config.layers - 1}."
    late = (EMBEDDING if config.tied else HEAD, f"{last}self_attn.o_proj.", f"{last}mlp.")
    shapes = expected_shapes(config)
    for name, kind in computed_types(source, config, dtype, activations).items():
        if name.startswith(late):
            head[kind.lower()] += 2 * math.prod(shapes[name])
        elif name != EMBEDDING:
            layers[kind.lower()] += 2 * math.prod(shapes[name])
    return dict(layers), dict(head)


def matrix_bytes(source: WeightSource, config: ModelConfig, dtype: str) -> int:
    """Bytes of all weights in a compute type; kernels may add padding of their own."""
    total = 0
    for name, shape in expected_shapes(config).items():
        kind = computed_type(source, name, dtype) if len(shape) == 2 else "F32"
        numbers, size = _SIZES[kind]
        total += math.prod(shape) // numbers * size
    return total


# Stored type -> type kept under "auto"; what is not here cannot be computed.
_KEPT: Mapping[str, str] = MappingProxyType(
    {kind: kind for kind in ("F32", "BF16", "F16", "Q8_0", *FOUR_BITS)}
    | dict.fromkeys(("Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"), "BF16")
)
_SIZES: Mapping[str, tuple[int, int]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q8_0": (32, 34),
    "BF16": (1, 2),
    "F16": (1, 2),
    "F32": (1, 4),
}


def some(names: Iterable[str]) -> str:
    """A few names and how many more, with the verb that follows."""
    listed = list(names)
    return ", ".join(listed[:3]) + (
        f" and {len(listed) - 3} more are" if len(listed) > 3 else " is" if len(listed) == 1 else " are"
    )
