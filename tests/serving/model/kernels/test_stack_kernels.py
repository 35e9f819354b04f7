"""Halves of layers in one native call have the bits of their operations one by one."""

import weakref

import pytest
import torch

from netgain.serving.model.kernels.composed import ComposedStack
from netgain.serving.model.kernels.protocol import AttentionParts, Linear, MlpParts
from netgain.serving.model.kv import block_shapes

HIDDEN, FFN, HEADS, KV_HEADS, DIM, BLOCK = 96, 160, 6, 2, 32, 8
WIDTHS = (HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM)
POSITIONS, SEGMENTS = torch.tensor([3, 4, 5, 20, 0, 1, 40]), torch.tensor([0, 0, 0, 1, 2, 2, 3])
TABLES = torch.arange(4 * 6, dtype=torch.int32).view(4, 6)


class Layers:
    """A KVView over random memory."""

    def __init__(self, layers, dtype=torch.float32, blocks=24, block_tokens=BLOCK, dim=DIM):
        self.shapes = [(blocks, *shape) for shape in block_shapes(KV_HEADS, dim, block_tokens, dtype)]
        # as int8, whose scales must be numbers, all bytes alike
        size = (layers, 2, blocks * KV_HEADS * block_tokens * self.shapes[0][2])
        self.memory = torch.full(size, 60, dtype=dtype) if dtype == torch.int8 else vector(size, 10).to(dtype)

    def keys(self, layer):
        return self.memory[layer, 0].view(self.shapes[0])

    def values(self, layer):
        return self.memory[layer, 1].view(self.shapes[1])


def vector(size, seed):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def linear(kernels, make_matrix, kinds, widths, ins, bias, seed):
    weights = tuple(
        make_matrix(kind, width, ins, seed + at).pack(kernels)
        for at, (kind, width) in enumerate(zip(kinds, widths, strict=True))
    )
    return Linear(weights, vector(sum(widths), seed) if bias else None)


def attention(kernels, make_matrix, kinds=("q4_1",), bias=False, normed=False, window=None, seed=3):
    widths = WIDTHS if len(kinds) == 3 else (sum(WIDTHS),)
    return AttentionParts(
        norm=vector(HIDDEN, seed),
        qkv=linear(kernels, make_matrix, kinds, widths, HIDDEN, bias, seed + 1),
        query_norm=vector(DIM, seed + 5) if normed else None,
        key_norm=vector(DIM, seed + 6) if normed else None,
        output=linear(kernels, make_matrix, kinds[:1], (HIDDEN,), HEADS * DIM, bias, seed + 7),
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        eps=1e-5,
        window=window,
    )


def mlp(kernels, make_matrix, kinds=("q8_0", "float32"), bias=True, seed=30):
    widths = (FFN, FFN) if len(kinds) == 2 else (2 * FFN,)
    return MlpParts(
        norm=vector(HIDDEN, seed),
        gate_up=linear(kernels, make_matrix, kinds, widths, HIDDEN, bias, seed + 1),
        down=linear(kernels, make_matrix, kinds[:1], (HIDDEN,), FFN, False, seed + 4),
        eps=1e-5,
    )


def outcome(kernels, stack, kv, picked=None, x=None, rows=(POSITIONS, SEGMENTS, TABLES)):
    """What comes out, and what lies in the cache afterwards. `rows`: their positions and segments, and the block tables."""
    angles = rows[0][:, None] * vector(DIM // 2, 1)
    plan = kernels.plan(*rows, BLOCK)
    chosen = None if picked is None else torch.tensor(picked, dtype=torch.int64)
    x = vector((len(rows[0]), HIDDEN), 12) if x is None else x
    return stack(x, angles.cos(), angles.sin(), kv, plan, chosen), kv.memory


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("kinds", "bias", "normed", "window"),
    [
        (("q4_1",), False, False, None),
        (("q4_1", "q8_0", "bfloat16"), True, False, 5),
        (("float32",), True, True, None),
    ],
)
@pytest.mark.parametrize("picked", [None, (6, 0, 6), ()])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_a_stack_in_one_call_equals_its_operations(
    compiled_by_threads, make_matrix, kinds, bias, normed, window, picked, kv_dtype
):
    outcomes = []
    for threads, native in ((1, False), (1, True), (3, True)):
        kernels = compiled_by_threads[threads]
        blocks = [
            attention(kernels, make_matrix, kinds, bias, normed, window),
            mlp(kernels, make_matrix),
            attention(kernels, make_matrix, kinds, bias, normed, window, seed=50),
            mlp(kernels, make_matrix, ("float16",), False, seed=70),
            mlp(kernels, make_matrix, ("q4_0",), False, seed=90),
        ]
        stack = kernels.stack(blocks) if native else ComposedStack(kernels, blocks)
        outcomes.append(outcome(kernels, stack, Layers(2, kv_dtype), picked))
    assert all(equal(outcomes[0], native) for native in outcomes[1:])


@pytest.mark.parametrize("picked", [None, (299, 20, 21, 22, 199)])
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.int8])
def test_many_rows_in_one_call_equal_their_operations(compiled_by_threads, make_matrix, picked, kv_dtype):
    """As many as are cut into chunks: two prompts with single rows before, between and behind them."""
    spans = [(5, 1), (0, 150), (60, 1), (30, 147), (170, 1)]
    positions = torch.cat([torch.arange(start, start + count) for start, count in spans])
    segments = torch.cat([torch.full((count,), segment) for segment, (_, count) in enumerate(spans)])
    blocks = len(spans) * 23
    tables = torch.randperm(blocks, generator=torch.Generator().manual_seed(0)).int().view(len(spans), -1)
    outcomes = []
    for threads, native in ((1, False), (1, True), (2, True), (3, True)):
        kernels = compiled_by_threads[threads]
        parts = [attention(kernels, make_matrix), mlp(kernels, make_matrix)] * 2
        stack = kernels.stack(parts) if native else ComposedStack(kernels, parts)
        rows = (positions, segments, tables)
        outcomes.append(outcome(kernels, stack, Layers(2, kv_dtype, blocks), picked, rows=rows))
    assert all(equal(outcomes[0], native) for native in outcomes[1:])


def test_stacks_one_behind_the_other_equal_one(compiled, make_matrix):
    """What a pipeline of two stages needs."""
    blocks = [block(compiled, make_matrix, seed=seed) for seed in (3, 60) for block in (attention, mlp)]
    whole, memory = outcome(compiled, compiled.stack(blocks), Layers(2), (5, 2))
    first, last = Layers(2), Layers(2)
    last.memory = last.memory[1:]
    middle, _ = outcome(compiled, compiled.stack(blocks[:2]), first)
    end, _ = outcome(compiled, compiled.stack(blocks[2:]), last, (5, 2), middle)
    assert torch.equal(end, whole)
    assert torch.equal(first.memory[0], memory[0])
    assert torch.equal(last.memory[0], memory[1])


def test_what_a_block_adds_can_be_summed_over_ranks_before_it_is_added(kernels, make_matrix):
    """Each of two ranks holds a half of the MLP's inner features; together they compute what one does alone."""
    whole = mlp(kernels, make_matrix, ("float32",), False)
    dense, down = make_matrix("float32", 2 * FFN, HIDDEN, 31).values, make_matrix("float32", HIDDEN, FFN, 34).values
    attending = attention(kernels, make_matrix)
    alone, _ = outcome(kernels, kernels.stack([attending, whole]), Layers(1))

    def shard(rank):
        inner = slice(rank * FFN // 2, (rank + 1) * FFN // 2)
        gate_up = torch.cat([half[inner] for half in dense.split(FFN)]).float()
        parts = (gate_up, down[:, inner].float())
        first, second = (Linear((kernels.pack_dense(part, torch.float32),)) for part in parts)
        return MlpParts(norm=whole.norm, gate_up=first, down=second, eps=whole.eps)

    seen = []
    outcome(kernels, kernels.stack([attending, shard(1)], lambda added: seen.append(added.clone())), Layers(1))

    def reduce(added):
        if blocks_done := len(summed):
            added += seen[blocks_done]
        summed.append(added.shape)

    summed = []
    together, _ = outcome(kernels, kernels.stack([attending, shard(0)], reduce), Layers(1))
    assert summed == [(7, HIDDEN), (7, HIDDEN)]
    assert float((together - alone).abs().max()) < 1e-5 * float(alone.abs().max())


def test_a_failure_between_blocks_ends_the_run_and_comes_out(kernels, make_matrix):
    def reduce(added):
        calls.append(added)
        raise ConnectionError("rank 1 is gone")

    calls = []
    stack = kernels.stack([attention(kernels, make_matrix), mlp(kernels, make_matrix)], reduce)
    for times in (1, 2):
        with pytest.raises(ConnectionError, match="rank 1"):
            outcome(kernels, stack, Layers(1))
        assert len(calls) == times


def test_kv_memory_is_not_held_by_the_stack_that_wrote_it(compiled, make_matrix):
    stack, kv = compiled.stack([attention(compiled, make_matrix)]), Layers(1)
    outcome(compiled, stack, kv)
    held = weakref.ref(kv)
    del kv
    assert held() is None


def test_what_does_not_fit_is_refused_before_memory_is_touched(compiled, make_matrix):
    parts = attention(compiled, make_matrix)
    stack = compiled.stack([parts])
    kv = Layers(1)
    before = kv.memory.clone()
    with pytest.raises(ValueError, match="rows"):
        outcome(compiled, stack, kv, x=vector((2, HIDDEN), 1))
    with pytest.raises(ValueError, match="heads"):
        outcome(compiled, stack, Layers(1, dim=2 * DIM))
    with pytest.raises(ValueError, match="cache"):
        outcome(compiled, stack, Layers(1, block_tokens=2 * BLOCK))
    with pytest.raises(ValueError, match="cache"):
        outcome(compiled, stack, Layers(1, blocks=20))
    for picked in ((0, 7), (0, -1)):
        with pytest.raises(IndexError, match=f"row {picked[1]} was picked out of 7"):
            outcome(compiled, stack, kv, picked)
    assert torch.equal(kv.memory, before)
    with pytest.raises(ValueError, match="features"):
        compiled.stack([AttentionParts(**{**vars(parts), "heads": HEADS + KV_HEADS})])
    with pytest.raises(ValueError, match="features"):
        compiled.stack([parts, MlpParts(vector(HIDDEN + 1, 1), parts.qkv, parts.output, 1e-5)])


def test_a_stack_without_attention_is_refused(kernels, make_matrix):
    with pytest.raises(ValueError, match="attends"):
        kernels.stack([mlp(kernels, make_matrix)])
