"""The KV pool of a torch executor as bytes, block by block, for tiers: what a prefix hit serves, on whatever device it lies."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from netgain.serving.model.cache import PagedKV
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.features import FeaturePlane
from netgain.serving.tiers.object import TARGET, Shape
from netgain.serving.tiers.planes import Plane, Rows

_SCALED = "K[head,dim,token] scale[head,token] V[head,token,dim+scale]"


class _Part(NamedTuple):
    """A plane with its memory: uint8 [layers, blocks, bytes] each, one after the other in every layer."""

    plane: Plane
    memory: tuple[torch.Tensor, ...]


class PoolMemory:
    """BlockMemory over a model's paged KV, and over the features that heads draft from, named after the draft they are for."""

    def __init__(
        self, config: ModelConfig, kv: PagedKV, features: FeaturePlane | None = None, features_of: str = ""
    ) -> None:
        keys, values = kv.raw()
        shape = Shape(
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            dtype=str(kv.dtype).removeprefix("torch."),
            token_bytes=(keys.shape[2] + values.shape[2]) // kv.block_tokens,
            block_tokens=kv.block_tokens,
        )
        if kv.dtype == torch.int8:
            shape = Shape(
                shape.kv_heads, shape.head_dim, shape.dtype, shape.token_bytes, shape.block_tokens, arrangement=_SCALED
            )
        self._parts = [_Part(Plane(TARGET, config.layers, shape), (keys, values))]
        if features is not None:
            raw = features.raw()
            plane = Shape(
                1, features.width, "bfloat16", raw.shape[2] // kv.block_tokens, kv.block_tokens, "[token,dim]"
            )
            self._parts.append(_Part(Plane(f"features {features_of}", 1, plane), (raw,)))

    @property
    def planes(self) -> list[Plane]:
        return [part.plane for part in self._parts]

    @property
    def memories(self) -> list[torch.Tensor]:
        """All of it: uint8 [layers, blocks, bytes] each."""
        return [memory for part in self._parts for memory in part.memory]

    def read_blocks(self, blocks: Sequence[int]) -> list[Rows]:
        return [_read(part, blocks) for part in self._parts]

    def write_blocks(self, blocks: Sequence[int], planes: Sequence[Sequence[memoryview]]) -> None:
        self.write_layers(blocks, 0, planes[0])
        self.write_planes(blocks, planes[1:])

    def write_layers(self, blocks: Sequence[int], first: int, rows: Sequence[memoryview]) -> None:
        _write(self._parts[0], blocks, first, rows)

    def write_planes(self, blocks: Sequence[int], planes: Sequence[Sequence[memoryview]]) -> None:
        for part, rows in zip(self._parts[1:], planes, strict=True):
            _write(part, blocks, 0, rows)


def _read(part: _Part, blocks: Sequence[int]) -> Rows:
    layers, _, size = part.memory[0].shape
    rows = np.empty((len(blocks), layers, len(part.memory), size), np.uint8)
    for place, memory in enumerate(part.memory):
        if memory.device.type == "cpu":
            source = memory.numpy()
            for row, block in enumerate(blocks):
                rows[row, :, place] = source[:, block]
        else:
            chosen = torch.as_tensor(blocks, device=memory.device)
            rows[:, :, place] = memory.index_select(1, chosen).transpose(0, 1).cpu().numpy()
    return rows.reshape(len(blocks), part.plane.block_bytes)


def _write(part: _Part, blocks: Sequence[int], first: int, rows: Sequence[memoryview]) -> None:
    size = part.memory[0].shape[2]
    layers = len(rows[0]) // (len(part.memory) * size) if rows else 0
    shape = (layers, len(part.memory), size)
    for place, memory in enumerate(part.memory):
        sources = [np.frombuffer(row, np.uint8).reshape(shape)[:, place] for row in rows]
        written = memory[first : first + layers]
        if memory.device.type == "cpu":
            target = written.numpy()
            for block, source in zip(blocks, sources, strict=True):
                target[:, block] = source
        else:
            chosen = torch.as_tensor(blocks, device=memory.device)
            written.index_copy_(1, chosen, torch.from_numpy(np.stack(sources, axis=1)).to(memory.device))
