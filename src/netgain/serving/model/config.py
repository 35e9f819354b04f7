"""The shape of a model as data: everything that the forward pass and the sizes of KV and weights depend on, as facts, so
that no code asks for the name of a model's family."""

from __future__ import annotations

from dataclasses import dataclass, field

from netgain.errors import UsageError
from netgain.serving.model.rope import Rope

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
    """A decoder-only transformer: RMSNorm, rotary attention with grouped heads, gated SiLU feed-forward.

    `context` is in tokens; `tied` says that the head is the embedding; `bos` is None where the model has none.
    `windows` has an entry per layer: how many positions a token sees there, its own among them, or None for all.
    `qkv_bias`, `output_bias` and `mlp_bias` say which products add a vector; `qk_norm` that every query and key head is
    normalised before it is turned; `mtp` how many modules that foresee further tokens follow the layers (see drafts/mtp.py).
    `notes` say what a user should know about how the files were read.
    Raises UsageError for a shape that cannot be.
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
    rope: Rope
    rms_eps: float
    tied: bool
    bos: int | None
    eos: tuple[int, ...]
    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    mtp: int = 0
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
            value = getattr(self, name)
            if not 1 <= value <= limit:
                raise UsageError(f"model configuration: {name} is {value}, outside 1..{limit}")
        if self.heads % self.kv_heads:
            raise UsageError(f"model configuration: {self.heads} heads cannot share {self.kv_heads} KV heads evenly")
        if self.head_dim % 2:
            raise UsageError(f"model configuration: head size {self.head_dim} is odd, rotary embeddings need pairs")
        if not 0 < self.rms_eps < 1:
            raise UsageError(f"model configuration: rms_eps is {self.rms_eps}, expected between 0 and 1")
        if self.mtp < 0:
            raise UsageError(f"model configuration: {self.mtp} modules foresee further tokens, expected 0 or more")
        if len(self.windows) != self.layers or any(window is not None and window < 1 for window in self.windows):
            raise UsageError(f"model configuration: windows {self.windows} do not fit {self.layers} layers")

    @property
    def parameters(self) -> int:
        """Weights of the model, a tied head counted once."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        layer += (self.heads + 2 * self.kv_heads) * self.head_dim * self.qkv_bias + self.hidden * self.output_bias
        layer += (2 * self.ffn + self.hidden) * self.mlp_bias + 2 * self.head_dim * self.qk_norm
        return self.layers * layer + self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def kv_values_per_token(self) -> int:
        """Numbers kept per token over all layers, keys and values; times the size of a number gives bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim
