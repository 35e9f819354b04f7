"""The tensors of a GGUF file under Hugging Face names, rotary rows back in Hugging Face order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.gguf import GgufFile
from netgain.serving.model.gguf_types import dequantise
from netgain.serving.model.quantise import Encode, quantised
from netgain.serving.model.weights import EMBEDDING, HEAD, NORM, Blocks, narrowed

_AT_ONCE = 1 << 23  # numbers dequantised together, so that a large matrix never exists whole in float32 without need

_LAYER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
_TOP_NAMES: Mapping[str, str] = MappingProxyType(
    {"token_embd.weight": EMBEDDING, "output_norm.weight": NORM, "output.weight": HEAD}
)
_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class GgufSource:
    """The weights of an open file. Tensors that the configuration was read from (frequency factors) are not among them."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        # Only converters of this architecture put the two halves of a head's rotary dimensions beside each other.
        pairs = file.metadata.get("general.architecture") == "llama"
        self._paired = {"q_proj": config.heads, "k_proj": config.kv_heads} if pairs else {}
        read = _ROPE_FACTORS if config.rope.kind == "divided" else ()
        self._stored = {_huggingface_name(name): name for name in file.tensors if name not in read}
        self.files = (file.path,)

    def names(self) -> frozenset[str]:
        return frozenset(self._stored)

    def kind(self, name: str) -> str:
        return self._file.tensors[self._stored[name]].type.name

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._stored[name]].shape

    def dense(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        kind, shape = self.kind(name), self.shape(name)
        wanted = dtype or _TORCH_TYPES.get(kind, torch.float32)
        rows = self._file.raw(self._stored[name])
        at_once = max(1, _AT_ONCE // shape[-1])
        pieces = []
        for start in range(0, len(rows), at_once):
            values = dequantise(rows[start : start + at_once], kind)
            piece = torch.from_numpy(values if values.flags.writeable else values.copy())
            pieces.append(narrowed(piece, wanted, name, kind))
        whole = (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).reshape(shape)
        if heads := self._heads(name):
            return whole.reshape(heads, shape[0] // heads // 2, 2, -1).transpose(1, 2).reshape(shape).contiguous()
        return whole

    def blocks(self, name: str, kind: str, encode: Encode) -> Blocks:
        shape, rows = self.shape(name), self._file.raw(self._stored[name])
        stored = self.kind(name)
        try:
            if stored != kind:
                rows = quantised(
                    encode,
                    (shape[0], shape[1]),
                    lambda start, stop: torch.tensor(dequantise(rows[start:stop], stored)),
                ).numpy()
        except UsageError as error:
            raise UsageError(f"{self._file.path}: {name} ({stored}) {error}") from error
        if heads := self._heads(name):
            paired = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
            rows = np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)
        return Blocks(kind, torch.from_numpy(rows if rows.flags.writeable else rows.copy()), (shape[0], shape[1]))

    def _heads(self, name: str) -> int | None:
        """How many heads' rows lie in pairs in this tensor (a matrix or a vector), or None."""
        return next((count for part, count in self._paired.items() if f".{part}." in name), None)


_TORCH_TYPES: Mapping[str, torch.dtype] = MappingProxyType({"F16": torch.float16, "BF16": torch.bfloat16})


def _huggingface_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; unknown names stay, to be refused by name."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer and layer[2] in _LAYER_NAMES:
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{layer[3]}"
    # A name that is not GGUF's must not pass for the tensor that Hugging Face calls so.
    return _TOP_NAMES.get(name, f"{name} (not a GGUF name)" if name.startswith(("model.", "lm_head")) else name)
