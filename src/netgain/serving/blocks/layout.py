"""How many bytes KV takes, exactly: fields are read from the model, never derived from others."""

import msgspec


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of one model's KV: `layers` x {K, V} x `kv_heads` x (`head_dim` values of `value_bytes`, and a scale of
    `scale_bytes`) per token."""

    layers: int
    kv_heads: int
    head_dim: int
    value_bytes: int
    scale_bytes: int = 0
    block_tokens: int

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * (self.head_dim * self.value_bytes + self.scale_bytes)

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_tokens

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)
