"""Where a model's matrices come from: safetensors (single or sharded) and GGUF behind one face that speaks Hugging Face
tensor names, keeps quantised blocks as stored where asked, and refuses by name whatever is missing, short or left over."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig, read_json
from netgain.serving.model.gguf import GgufFile, dequantise

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"


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

    def dense(self, name: str) -> Tensor:
        """As float32, or as stored where that is bfloat16 or float16; on the CPU."""
        ...

    def blocks(self, name: str) -> Blocks | None:
        """The quantised blocks as stored; None where the tensor is not stored in usable blocks."""
        ...


class SafetensorsSource:
    """A folder's model.safetensors, or the shards that model.safetensors.index.json names and no other file."""

    def __init__(self, folder: Path) -> None:
        shards, place = _shards(folder)
        self.files = tuple(folder / shard for shard in shards)
        self._open = {shard: _open(folder / shard) for shard in shards}
        held = {shard: frozenset(file.keys()) for shard, file in self._open.items()}
        if place is None:
            place = {name: shard for shard, names in held.items() for name in names}
        for name, shard in place.items():
            if name not in held[shard]:
                raise UsageError(f"{folder / shard} lacks tensor {name}, which the index places there")
        self._place = place

    def names(self) -> frozenset[str]:
        return frozenset(self._place)

    def kind(self, name: str) -> str:
        return str(self._slice(name).get_dtype())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dense(self, name: str) -> Tensor:
        kind = self.kind(name)
        if kind not in ("F32", "F16", "BF16"):
            raise UsageError(f"tensor {name} has type {kind}; supported: F32, F16, BF16")
        return self._open[self._place[name]].get_tensor(name)  # type: ignore[no-any-return]

    def blocks(self, name: str) -> Blocks | None:
        return None

    def _slice(self, name: str) -> Any:
        return self._open[self._place[name]].get_slice(name)


class GgufSource:
    """A llama-architecture GGUF file; undoes the row order that its converter gives to query and key matrices."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._heads = {"q_proj": config.heads, "k_proj": config.kv_heads}
        self._stored = {_huggingface_name(name): name for name in file.tensors}
        self.files = (file.path,)

    def names(self) -> frozenset[str]:
        return frozenset(self._stored)

    def kind(self, name: str) -> str:
        return self._file.tensors[self._stored[name]].type.name

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._stored[name]].shape

    def dense(self, name: str) -> Tensor:
        values = dequantise(self._rows(name), self.kind(name)).reshape(self.shape(name))
        return torch.from_numpy(values if values.flags.writeable else values.copy())

    def blocks(self, name: str) -> Blocks | None:
        shape = self.shape(name)
        if self.kind(name) not in ("Q4_1", "Q8_0") or len(shape) != 2:
            return None
        rows = self._rows(name)
        return Blocks(
            self.kind(name), torch.from_numpy(rows if rows.flags.writeable else rows.copy()), (shape[0], shape[1])
        )

    def _rows(self, name: str) -> np.ndarray[Any, Any]:
        rows = self._file.raw(self._stored[name])
        heads = next((count for part, count in self._heads.items() if f".{part}." in name), None)
        if heads is None:
            return rows
        if rows.shape[0] % (2 * heads):
            raise UsageError(f"{self._file.path}: {name} has {rows.shape[0]} rows, which {heads} heads do not divide")
        paired = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
        return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)


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
    return shapes


def check_names(source: WeightSource, config: ModelConfig) -> tuple[str, ...]:
    """Notes on what is ignored; UsageError names tensors that are missing, of another shape, or not understood."""
    expected, present = expected_shapes(config), source.names()
    missing = [name for name in expected if name not in present]
    if missing:
        raise UsageError(f"{source.files[0]}: tensor {_some(missing)} missing; the checkpoint is incomplete")
    for name, shape in expected.items():
        if source.shape(name) != shape:
            raise UsageError(f"{source.files[0]}: {name} is {source.shape(name)}, the configuration says {shape}")
    ignored = {name for name in present if name.endswith(".rotary_emb.inv_freq")}  # old checkpoints; always derived
    left = sorted(present - expected.keys() - ignored - {HEAD})
    if left:
        raise UsageError(f"{source.files[0]}: tensor {_some(left)} not used by architecture {config.architecture}")
    if config.tied and HEAD in present:
        return (f"{HEAD} is ignored: the configuration ties the head to the embedding",)
    return ()


def stored_types(source: WeightSource) -> dict[str, int]:
    """How many tensors are stored in each type, the most frequent first."""
    return dict(Counter(source.kind(name) for name in sorted(source.names())).most_common())


def computed_type(stored: str, dtype: str) -> str:
    """The type in which a matrix stored as `stored` is kept and multiplied under a compute type (see llama.pack)."""
    if dtype == "bf16":
        return "BF16"
    return stored if dtype == "auto" and stored in ("Q4_1", "Q8_0", "BF16") else "F32"


def matrix_bytes(source: WeightSource, config: ModelConfig, dtype: str) -> int:
    """Bytes of all weights in a compute type; kernels may add padding of their own."""
    total = 0
    for name, shape in expected_shapes(config).items():
        kind = computed_type(source.kind(name), dtype) if len(shape) == 2 else "F32"
        numbers, size = _SIZES[kind]
        total += math.prod(shape) // numbers * size
    return total


_SIZES: Mapping[str, tuple[int, int]] = {"Q4_1": (32, 20), "Q8_0": (32, 34), "BF16": (1, 2), "F32": (1, 4)}
_LAYER_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES: Mapping[str, str] = {"token_embd.weight": EMBEDDING, "output_norm.weight": NORM, "output.weight": HEAD}


def _huggingface_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; unknown names stay, to be refused by name."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if layer and layer[2] in _LAYER_NAMES:
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.weight"
    return _TOP_NAMES.get(name, name)


def _shards(folder: Path) -> tuple[list[str], dict[str, str] | None]:
    """File names in order, and where each tensor lies (None: wherever it is found)."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        if not (folder / "model.safetensors").is_file():
            raise UsageError(f"{folder} holds neither model.safetensors nor model.safetensors.index.json")
        return ["model.safetensors"], None
    place = read_json(index).get("weight_map")
    if not isinstance(place, dict) or not place:
        raise UsageError(f"{index} holds no weight_map")
    for name, shard in place.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise UsageError(
                f"{index}: {name} is placed in {shard!r}, expected the name of a .safetensors file beside it"
            )
    shards = sorted(set(place.values()))
    absent = [shard for shard in shards if not (folder / shard).is_file()]
    if absent:
        raise UsageError(f"{folder}: shard {_some(absent)} missing, which {index.name} names; fetch it again")
    return shards, place


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is damaged or was cut short ({error}); fetch it again") from error


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (
        f" and {len(listed) - 3} more are" if len(listed) > 3 else " is" if len(listed) == 1 else " are"
    )
