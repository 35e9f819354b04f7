"""Blocks that come by layers bring their other planes with the last group, and are complete only with these."""

import numpy as np
import pytest

from netgain.ledger.clock import WallClock
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.kv_store import KVStore
from netgain.serving.tiers.layered import group_starts
from netgain.serving.tiers.object import Part, Shape
from netgain.serving.tiers.planes import Plane, expected
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import Tier
from tests.serving.tiers.samples import ROOT, SHAPE

LAYERS, BLOCKS = 6, 5
PLANES = [Plane("target", LAYERS, SHAPE), Plane("features", 1, Shape(1, 8, "bfloat16", 16, 4, "[token,dim]"))]
KEYS = [bytes([number]) * 32 for number in range(BLOCKS)]
STARTS = group_starts(LAYERS, 3)


async def filled() -> tuple[KVStore, list[np.ndarray], Tier]:
    tier = Tier("dram", DramMedium(LRU(1 << 20)), WallClock(), expected=expected(PLANES))
    store = KVStore(Stack([tier], WallClock()), PLANES, WallClock())
    draw = np.random.default_rng(1)
    rows = [draw.integers(0, 256, (BLOCKS, plane.block_bytes), np.uint8) for plane in PLANES]
    store.envelope._owners.remember(ROOT, None)
    store.put(ROOT, KEYS, rows, [(0,)] * BLOCKS, [0] * BLOCKS)
    await store.settle()
    return store, rows, tier


async def test_groups_are_the_layers_and_the_last_brings_the_other_planes() -> None:
    store, rows, _ = await filled()
    blocks = store.by_layers(ROOT, KEYS, STARTS)
    size = PLANES[0].block_bytes // LAYERS
    for group, end in enumerate((*STARTS[1:], LAYERS)):
        came = await blocks.load(group)
        assert came.complete
        for row, view in zip(rows[0], came.layers, strict=True):
            assert view == row[STARTS[group] * size : end * size].tobytes()
        assert (came.others is None) == (end < LAYERS)
    assert came.others is not None
    assert [one is not None and bytes(one[0]) for one in came.others] == [row.tobytes() for row in rows[1]]
    assert came.bytes == sum(map(len, (view for view in came.layers if view))) + rows[1].nbytes


@pytest.mark.parametrize(("plane", "layers"), [("features", 1), ("target", LAYERS)])
async def test_a_block_of_which_a_plane_is_missing_is_not_complete(plane: str, layers: int) -> None:
    """LMCache/LMCache#3022: a batch with a part missing was handed out with buffers that nobody had filled."""
    store, _, tier = await filled()
    await tier.delete([Part(KEYS[3], 0, layers, plane).address()])
    blocks = store.by_layers(ROOT, KEYS, STARTS)
    complete = [(await blocks.load(group)).complete for group in range(3 if plane == "features" else 1)]
    assert complete == ([True, True, False] if plane == "features" else [False])


async def test_another_root_finds_nothing() -> None:
    store, _, _ = await filled()
    came = await store.by_layers(bytes(32), KEYS, STARTS).load(0)
    assert came.layers == (None,) * BLOCKS
