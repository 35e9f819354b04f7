"""Made-up KV for tests of codecs: channels with centres and spreads of their own, a few numbers far out."""

import numpy as np

from netgain.serving.tiers.codecs.codec import Form, from_floats


def form(tokens: int = 16, layers: int = 2, kv_heads: int = 2, head_dim: int = 8, dtype: str = "bfloat16") -> Form:
    item = 2 if dtype == "bfloat16" else 4
    return Form(
        first_layer=0,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        tokens=tokens,
        dtype=dtype,
        token_bytes=2 * kv_heads * head_dim * item,
    )


def made(of: Form, seed: int = 0, alike: float = 0.0) -> bytes:
    """`alike`: how much of a block's tokens is common to them, 0 to 1. Channels are the same for every seed."""
    channels = np.random.default_rng(1)
    shape = (of.layers, 2, of.kv_heads, of.head_dim, 1)
    centre, spread = channels.normal(0, 3, shape), channels.lognormal(0, 0.5, shape)
    block = np.random.default_rng(seed)
    own = block.standard_normal((*shape[:-1], of.tokens))
    common = block.standard_normal(shape)
    values = centre + spread * (np.sqrt(alike) * common + np.sqrt(1 - alike) * own)
    values[block.random(values.shape) < 0.003] *= 40
    values[:, 1] = values[:, 1].swapaxes(-1, -2).reshape(values[:, 1].shape)  # V is stored [head, token, dim]
    return from_floats(values.astype(np.float32).reshape(-1), of.dtype)
