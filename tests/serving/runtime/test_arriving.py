"""A step behind KV that is still to come: what arrives is used, what does not costs nobody else; and the pool takes layers."""

import asyncio

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from netgain.serving.engine.batch import Batch
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.features import FeaturePlane
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model
from netgain.serving.runtime.block_memory import PoolMemory
from netgain.serving.runtime.torch_executor import TorchExecutor
from tests.serving.runtime.test_packing import segment


class Scripted:
    """Arriving; its KV is there, but for the groups from the one numbered `missing` on."""

    def __init__(self, request_id: str, starts: tuple[int, ...], missing: int) -> None:
        self.request_id, self.starts, self.missing = request_id, starts, missing
        self.asked: list[int] = []

    async def ready(self, group: int) -> bool:
        self.asked.append(group)
        return group < self.missing


@pytest.fixture(scope="module")
def executor(chain_model) -> TorchExecutor:
    kernels = load_kernels("auto", 1)
    model = load_model(str(chain_model.folder), "auto", kernels).model
    return TorchExecutor(model, PagedKV(model.config, 8, 16, torch.float32), kernels)


def run(executor: TorchExecutor, batch: Batch) -> list[tuple[int, ...]]:
    return [result.choices for result in asyncio.run(executor.execute(batch)).segments]


def test_a_segment_whose_layers_do_not_come_takes_nothing_from_the_others(executor: TorchExecutor) -> None:
    starts = tuple(range(executor._model.config.layers))
    segments = tuple(replace(segment((108, 5), 0, (index,)), request_id=f"r{index}") for index in range(3))
    plain = run(executor, Batch(segments))
    there, gone = Scripted("r0", starts, len(starts)), Scripted("r1", starts, len(starts) - 1)
    assert run(executor, Batch(segments, (there, gone))) == [plain[0], (), plain[2]]
    assert there.asked == list(range(len(starts)))
    assert gone.asked == list(range(len(starts)))


def test_nothing_is_computed_for_a_segment_alone_whose_layers_do_not_come(executor: TorchExecutor) -> None:
    starts = tuple(range(executor._model.config.layers))
    alone = segment((108, 5), 0, (0,))
    gone = Scripted(alone.request_id, starts, 0)
    assert run(executor, Batch((alone,), (gone,))) == [()]
    assert gone.asked == [0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
def test_layers_written_one_after_the_other_are_the_block(executor: TorchExecutor, dtype: torch.dtype) -> None:
    config = executor._model.config
    features = FeaturePlane(8, 16, 12, torch.device("cpu"), load_kernels("torch", 1))
    memory = PoolMemory(config, PagedKV(config, 8, 16, dtype), features, "draft")
    draw = np.random.default_rng(3)
    planes = [draw.integers(0, 256, (2, plane.block_bytes), np.uint8) for plane in memory.planes]
    memory.write_blocks([5, 2], [[row.data for row in rows] for rows in planes])
    whole = memory.read_blocks([5, 2])
    memory.write_blocks([5, 2], [[bytes(len(row)) for row in rows] for rows in planes])
    size = memory.planes[0].block_bytes // config.layers
    for layer in range(config.layers):
        memory.write_layers([5, 2], layer, [row[layer * size : (layer + 1) * size].data for row in planes[0]])
    memory.write_planes([5, 2], [[row.data for row in rows] for rows in planes[1:]])
    for rows, before, wanted in zip(memory.read_blocks([5, 2]), whole, planes, strict=True):
        assert np.array_equal(rows, wanted)
        assert np.array_equal(before, wanted)
