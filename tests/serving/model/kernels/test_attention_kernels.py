"""Paged attention and the cache it reads: right against float64, and bits that depend on nothing but a row's own past."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kv import block_shapes


class Scene(NamedTuple):
    """Segments of a batch with their cache: queries [rows, heads*dim] and where each row stands. Keys and values are as
    [blocks, block_tokens, kv_heads, dim], which is how a reader thinks of them, not how they lie."""

    q: Tensor
    positions: Tensor
    segments: Tensor
    tables: Tensor
    keys: Tensor
    values: Tensor
    heads: int
    window: int | None = None

    @property
    def cache(self) -> tuple[Tensor, Tensor]:
        """As kernels hold them."""
        return self.keys.permute(0, 2, 3, 1).contiguous(), self.values.permute(0, 2, 1, 3).contiguous()

    def attend(self, kernels: Kernels, rows: Tensor | slice = slice(None)) -> Tensor:
        plan = kernels.plan(self.positions[rows], self.segments[rows], self.tables, self.keys.shape[1])
        return kernels.attention(self.q[rows].contiguous(), *self.cache, plan, self.heads, self.window)


def make_scene(
    spans: list[tuple[int, int]],
    heads: int = 9,
    kv_heads: int = 3,
    dim: int = 64,
    block: int = 16,
    dtype: torch.dtype = torch.bfloat16,
) -> Scene:
    """One segment per (start, rows), in blocks strewn at random over the cache; what no row may read is NaN."""
    generator = torch.Generator().manual_seed(0)
    needed = [-(-(start + rows) // block) for start, rows in spans]
    order = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(1)).int()
    tables = torch.full((len(spans), max(needed) + 1), -1, dtype=torch.int32)
    shape = (len(order), block, kv_heads, dim)
    keys, values = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
    for segment, (start, rows) in enumerate(spans):
        mine, order = order[: needed[segment]], order[needed[segment] :]
        tables[segment, : len(mine)] = mine
        for place in range(start + rows):
            for cache in (keys, values):
                cache[mine[place // block], place % block] = torch.randn(kv_heads, dim, generator=generator).to(dtype)
    positions = torch.cat([torch.arange(start, start + rows) for start, rows in spans])
    segments = torch.cat([torch.full((rows,), segment) for segment, (_, rows) in enumerate(spans)])
    q = torch.randn(len(positions), heads * dim, generator=generator) * 2
    return Scene(q, positions, segments, tables, keys, values, heads)


def reference(scene: Scene) -> Tensor:
    block, kv_heads, dim = scene.keys.shape[1:]
    out = []
    for row, (place, segment) in enumerate(zip(scene.positions.tolist(), scene.segments.tolist(), strict=True)):
        places = torch.arange(max(0, place + 1 - scene.window) if scene.window else 0, place + 1)
        blocks = scene.tables[segment, places // block].long()
        keys, values = (cache[blocks, places % block].double() for cache in (scene.keys, scene.values))
        q = scene.q[row].double().view(kv_heads, -1, dim)
        weights = torch.softmax(torch.einsum("kgd,tkd->kgt", q, keys) / dim**0.5, -1)
        out.append(torch.einsum("kgt,tkd->kgd", weights, values).flatten())
    return torch.stack(out)


MIXED = [(0, 37), (300, 1), (120, 9), (0, 1), (127, 1), (128, 1), (254, 5)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block"), [(9, 3, 64, 16), (4, 4, 32, 8), (8, 1, 128, 32), (2, 2, 20, 5), (6, 2, 7, 1)]
)
def test_attention_equals_float64(
    kernels: Kernels, heads: int, kv_heads: int, dim: int, block: int, dtype: torch.dtype
) -> None:
    scene = make_scene(MIXED, heads, kv_heads, dim, block, dtype)
    assert (scene.attend(kernels) - reference(scene)).abs().max() < 5e-6


WINDOWS = [1, 5, 31, 64, 127, 128, 129, 200, 1000]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (2, 2, 20)])
def test_a_row_sees_its_window_and_nothing_before(
    kernels: Kernels, heads: int, kv_heads: int, dim: int, window: int
) -> None:
    scene = make_scene(MIXED, heads, kv_heads, dim)._replace(window=window)
    assert (scene.attend(kernels) - reference(scene)).abs().max() < 5e-6


def test_what_lies_before_every_window_is_not_read(kernels: Kernels) -> None:
    scene = make_scene([(300, 9)])._replace(window=40)
    expected = scene.attend(kernels)
    for place in range(300 - 40 + 1):
        block = scene.tables[0, place // 16].long()
        scene.keys[block, place % 16] = scene.values[block, place % 16] = float("nan")
    assert torch.equal(scene.attend(kernels), expected)


def test_a_window_longer_than_the_past_shows_all_of_it(kernels: Kernels) -> None:
    scene = make_scene(MIXED)
    assert (scene._replace(window=500).attend(kernels) - scene.attend(kernels)).abs().max() < 5e-6


def test_a_window_that_shows_nothing_is_refused(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="window of 0"):
        make_scene([(0, 3)])._replace(window=0).attend(kernels)


@pytest.mark.parametrize("window", [None, 3, 100, 128, 170])
def test_rows_keep_their_bits_in_any_batch(kernels: Kernels, window: int | None) -> None:
    scene = make_scene(MIXED)._replace(window=window)
    together = scene.attend(kernels)
    for row in range(len(scene.q)):
        assert torch.equal(scene.attend(kernels, torch.tensor([row])), together[row : row + 1]), row
    for seed in range(3):
        rows = torch.randperm(len(scene.q), generator=torch.Generator().manual_seed(seed))
        assert torch.equal(scene.attend(kernels, rows), together[rows])


@pytest.mark.parametrize("window", [None, 20, 130])
def test_chunks_of_a_prompt_change_no_bit(kernels: Kernels, window: int | None) -> None:
    scene = make_scene([(0, 150)])._replace(window=window)
    whole = scene.attend(kernels)
    for chunk in (1, 2, 3, 4, 5, 7, 16, 64, 149):
        parts = [scene.attend(kernels, slice(start, start + chunk)) for start in range(0, 150, chunk)]
        assert torch.equal(torch.cat(parts), whole), chunk


def test_block_size_and_order_change_no_bit(kernels: Kernels) -> None:
    first, *others = (make_scene([(290, 2), (3, 9)], block=block).attend(kernels) for block in (16, 1, 5, 64))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("window", [None, 7, 300])
@pytest.mark.parametrize("spans", [[(700, 1)], [(700, 5)], MIXED, [(130, 40)], [(index * 9, 1) for index in range(40)]])
def test_thread_count_changes_no_bit(
    compiled_by_threads: dict[int, CompiledKernels], spans: list[tuple[int, int]], window: int | None
) -> None:
    scene = make_scene(spans)._replace(window=window)
    first, *others = (scene.attend(kernels) for kernels in compiled_by_threads.values())
    assert all(torch.equal(first, other) for other in others)
    alone = torch.cat([scene.attend(compiled_by_threads[1], slice(row, row + 1)) for row in range(len(scene.q))])
    assert torch.equal(first, alone)


def test_sharp_scores_stay_finite(kernels: Kernels) -> None:
    scene = make_scene([(299, 1)])
    scene = scene._replace(q=scene.q * 300)
    assert (scene.attend(kernels) - reference(scene)).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_stored_keys_lie_where_the_table_says(kernels: Kernels, dtype: torch.dtype) -> None:
    scene = make_scene([(13, 6), (0, 2)], dtype=dtype)
    keys, values = torch.randn(8, 192), torch.randn(8, 192)
    laid_keys, laid_values = scene.cache
    plan = kernels.plan(scene.positions, scene.segments, scene.tables, 16)
    kernels.store_kv(keys, values, laid_keys, laid_values, plan)
    new_keys, new_values = laid_keys.permute(0, 3, 1, 2), laid_values.permute(0, 2, 1, 3)
    for source, before, after in ((keys, scene.keys, new_keys), (values, scene.values, new_values)):
        expected = before.clone()
        for row, (place, segment) in enumerate(zip(scene.positions.tolist(), scene.segments.tolist(), strict=True)):
            expected[scene.tables[segment, place // 16], place % 16] = source[row].view(3, 64).to(dtype)
        assert torch.equal(after.float().nan_to_num(123.0), expected.float().nan_to_num(123.0))


def test_bf16_rounds_to_even_and_keeps_nan(kernels: Kernels) -> None:
    bits = torch.tensor([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800001, 0x00000001], dtype=torch.int64)
    row = bits.to(torch.int32).view(torch.float32).repeat(1, 2)[:, :6]
    keys, values = torch.zeros(1, 1, 6, 1, dtype=torch.bfloat16), torch.zeros(1, 1, 1, 6, dtype=torch.bfloat16)
    plan = kernels.plan(torch.tensor([0]), torch.tensor([0]), torch.tensor([[0]], dtype=torch.int32), 1)
    kernels.store_kv(row, row, keys, values, plan)
    for cache in (keys, values):
        assert torch.equal(cache.flatten().float().nan_to_num(7.0), row[0].bfloat16().float().nan_to_num(7.0))


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block"), [(9, 3, 64, 16), (4, 2, 32, 4), (6, 2, 20, 8)])
def test_int8_attends_to_what_it_stored(kernels: Kernels, heads: int, kv_heads: int, dim: int, block: int) -> None:
    scene = make_scene(MIXED, heads, kv_heads, dim, block, torch.float32)
    key_shape, value_shape = block_shapes(kv_heads, dim, block, torch.int8)
    keys = torch.full((len(scene.keys), *key_shape), -1, dtype=torch.int8)  # scales that are NaN, as bits
    values = torch.full((len(scene.keys), *value_shape), -1, dtype=torch.int8)
    stored_keys, stored_values = (torch.full_like(scene.keys, float("nan")) for _ in range(2))
    for segment, (start, rows) in enumerate(MIXED):
        places = torch.arange(start + rows)
        plan = kernels.plan(places, torch.full((start + rows,), segment), scene.tables, block)
        where = scene.tables[segment, places // block].long(), places % block
        new_keys, new_values = scene.keys[where], scene.values[where]
        kernels.store_kv(new_keys.flatten(1), new_values.flatten(1), keys, values, plan)
        for new, stored in ((new_keys, stored_keys), (new_values, stored_values)):
            scale = new.abs().amax(-1, keepdim=True) / 127
            stored[where] = torch.round(new / scale) * scale
    plan = kernels.plan(scene.positions, scene.segments, scene.tables, block)
    attended = kernels.attention(scene.q, keys, values, plan, heads)
    assert (attended - reference(scene._replace(keys=stored_keys, values=stored_values))).abs().max() < 2e-3


def test_int8_is_stored_alike_by_all_kernels(oracle: Kernels, compiled: CompiledKernels) -> None:
    stored = []
    for kernels in (oracle, compiled):
        keys, values = (torch.zeros(3, *shape, dtype=torch.int8) for shape in block_shapes(3, 64, 16, torch.int8))
        plan = kernels.plan(torch.arange(20), torch.zeros(20, dtype=torch.int64), torch.tensor([[2, 0]]).int(), 16)
        x = torch.randn(2, 20, 192, generator=torch.Generator().manual_seed(0))
        x[:, 3] = 0
        kernels.store_kv(x[0], x[1], keys, values, plan)
        stored.append((keys, values))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*stored, strict=True))


def test_a_position_past_its_table_is_refused(kernels: Kernels) -> None:
    tables = torch.tensor([[1, 0, -1]], dtype=torch.int32)
    for place in (32, 48):
        with pytest.raises(ValueError, match="block table"):
            kernels.plan(torch.tensor([place]), torch.tensor([0]), tables, 16)


def test_a_block_outside_the_cache_is_refused(compiled: CompiledKernels) -> None:
    plan = compiled.plan(torch.tensor([3]), torch.tensor([0]), torch.tensor([[2]], dtype=torch.int32), 16)
    with pytest.raises(ValueError, match="does not fit the cache"):
        compiled.attention(torch.zeros(1, 8), torch.zeros(2, 1, 8, 16), torch.zeros(2, 1, 16, 8), plan, 1)


@pytest.mark.parametrize("part", ["keys", "values"])
@pytest.mark.parametrize("damaged", [0, 140, 299])
def test_a_number_that_is_none_reaches_every_row_that_sees_it_and_no_other(
    kernels: Kernels, part: str, damaged: int
) -> None:
    scene = make_scene([(297, 4)])
    cache = getattr(scene, part)
    cache[scene.tables[0, damaged // 16].long(), damaged % 16] = float("nan")
    attended = scene.attend(kernels).isnan().any(1)
    assert torch.equal(attended, scene.positions >= damaged)
