"""A half of a layer in one native call has the bits of its operations one by one."""

import pytest
import torch

from netgain.serving.model.kernels.composed import ComposedAttention, composed_mlp
from netgain.serving.model.kernels.protocol import AttentionParts, Linear, MlpParts

HIDDEN, FFN, HEADS, KV_HEADS, DIM, BLOCK = 96, 160, 6, 2, 32, 8
WIDTHS = {"query": HEADS * DIM, "key": KV_HEADS * DIM, "value": KV_HEADS * DIM}


def vector(size, seed):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def linear(kernels, make_matrix, kinds, widths, ins, bias, seed):
    weights = tuple(
        make_matrix(kind, width, ins, seed + at).pack(kernels)
        for at, (kind, width) in enumerate(zip(kinds, widths, strict=True))
    )
    return Linear(weights, vector(sum(widths), seed) if bias else None)


@pytest.mark.parametrize(
    ("kinds", "bias", "normed", "window"),
    [
        (("q4_1",), False, False, None),
        (("q4_1", "q8_0", "bfloat16"), True, False, 5),
        (("float32",), True, True, None),
    ],
)
@pytest.mark.parametrize("picked", [None, (6, 0, 6)])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float32])
def test_attention_in_one_call_equals_its_operations(
    compiled_by_threads, make_matrix, kinds, bias, normed, window, picked, kv_dtype
):
    widths = tuple(WIDTHS.values()) if len(kinds) == 3 else (sum(WIDTHS.values()),)
    positions, segments = torch.tensor([3, 4, 5, 20, 0, 1, 40]), torch.tensor([0, 0, 0, 1, 2, 2, 3])
    tables = torch.arange(4 * 6, dtype=torch.int32).view(4, 6)
    angles = positions[:, None] * vector(DIM // 2, 1)
    chosen = None if picked is None else torch.tensor(picked)
    outcomes = []
    for threads, native in ((1, False), (1, True), (3, True)):
        kernels = compiled_by_threads[threads]
        parts = AttentionParts(
            norm=vector(HIDDEN, 2),
            qkv=linear(kernels, make_matrix, kinds, widths, HIDDEN, bias, 3),
            query_norm=vector(DIM, 7) if normed else None,
            key_norm=vector(DIM, 8) if normed else None,
            output=linear(kernels, make_matrix, kinds[:1], (HIDDEN,), HEADS * DIM, bias, 9),
            heads=HEADS,
            kv_heads=KV_HEADS,
            head_dim=DIM,
            eps=1e-5,
            window=window,
        )
        keys, values = (vector((24, BLOCK, KV_HEADS, DIM), seed).to(kv_dtype) for seed in (10, 11))
        block = kernels.attention_block(parts) if native else ComposedAttention(kernels, parts)
        x, plan = vector((7, HIDDEN), 12), kernels.plan(positions, segments, tables, BLOCK)
        outcomes.append((block(x, angles.cos(), angles.sin(), keys, values, plan, chosen), keys, values))
    composed, *natives = outcomes
    for native_outcome in natives:
        assert all(torch.equal(one, other) for one, other in zip(composed, native_outcome, strict=True))


@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("kinds", [("q4_1",), ("q8_0", "float32"), ("float16",)])
def test_the_mlp_in_one_call_equals_its_operations(compiled, make_matrix, rows, kinds):
    widths = (FFN, FFN) if len(kinds) == 2 else (2 * FFN,)
    parts = MlpParts(
        norm=vector(HIDDEN, 2),
        gate_up=linear(compiled, make_matrix, kinds, widths, HIDDEN, len(kinds) == 2, 3),
        down=linear(compiled, make_matrix, kinds[:1], (HIDDEN,), FFN, False, 6),
        eps=1e-5,
    )
    x = vector((rows, HIDDEN), 8)
    assert torch.equal(compiled.mlp_block(parts)(x), composed_mlp(compiled, parts)(x))


def test_what_does_not_fit_is_refused_before_memory_is_touched(compiled, make_matrix):
    parts = AttentionParts(
        norm=vector(HIDDEN, 2),
        qkv=linear(compiled, make_matrix, ("q4_1",), (sum(WIDTHS.values()),), HIDDEN, False, 3),
        query_norm=None,
        key_norm=None,
        output=linear(compiled, make_matrix, ("q4_1",), (HIDDEN,), HEADS * DIM, False, 9),
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        eps=1e-5,
    )
    block = compiled.attention_block(parts)
    plan = compiled.plan(torch.tensor([3]), torch.tensor([0]), torch.zeros(1, 1, dtype=torch.int32), BLOCK)
    angles = torch.zeros(1, DIM // 2)
    cache = torch.zeros(2, BLOCK, KV_HEADS, DIM)
    other = torch.zeros(2, BLOCK, KV_HEADS, DIM * 2)
    small = torch.zeros(2, BLOCK * 2, KV_HEADS, DIM)
    x = vector((1, HIDDEN), 1)
    with pytest.raises(ValueError, match="rows"):
        block(vector((2, HIDDEN), 1), angles, angles, cache, cache.clone(), plan, None)
    with pytest.raises(ValueError, match="heads"):
        block(x, angles, angles, other, other.clone(), plan, None)
    with pytest.raises(ValueError, match="cache"):
        block(x, angles, angles, small, small.clone(), plan, None)
    with pytest.raises(IndexError, match="row 1"):
        block(x, angles, angles, cache, cache.clone(), plan, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="features"):
        compiled.attention_block(AttentionParts(**{**vars(parts), "heads": HEADS + KV_HEADS}))
