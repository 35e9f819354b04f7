"""The tensors of a Hugging Face folder: one safetensors file, or the shards that an index names and no other file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from netgain.errors import UsageError
from netgain.serving.model.fields import read_json
from netgain.serving.model.quantise import Encode, quantised
from netgain.serving.model.weights import Blocks, narrowed, some


class SafetensorsSource:
    """A folder's model.safetensors, or the shards that model.safetensors.index.json names and no other file."""

    def __init__(self, folder: Path, file: str | None = None) -> None:
        """With `file` its tensors are read and nothing else."""
        shards, place = _shards(folder) if file is None else ([file], None)
        self.files = tuple(folder / shard for shard in shards)
        self._open = {shard: _open(folder / shard) for shard in shards}
        held = {shard: frozenset(file.keys()) for shard, file in self._open.items()}
        if place is None:
            place = {name: shard for shard, names in held.items() for name in names}
        for name, shard in place.items():
            if name not in held[shard]:
                raise UsageError(f"{folder / shard} lacks tensor {name}, which the index places there")
        self._place = place

    def names(self) -> frozenset[str]:
        return frozenset(self._place)

    def kind(self, name: str) -> str:
        return str(self._slice(name).get_dtype())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def dense(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        stored = self._open[self._place[name]].get_tensor(name)
        return narrowed(stored, dtype or stored.dtype, name, self.kind(name))

    def blocks(self, name: str, kind: str, encode: Encode) -> Blocks:
        stored = self._slice(name)
        outs, ins = self.shape(name)
        try:
            data = quantised(encode, (outs, ins), lambda start, stop: stored[start:stop].float())
        except UsageError as error:
            raise UsageError(f"{self.files[0].parent}: {name} ({self.kind(name)}) {error}") from error
        return Blocks(kind, data, (outs, ins))

    def _slice(self, name: str) -> Any:
        return self._open[self._place[name]].get_slice(name)


def _shards(folder: Path) -> tuple[list[str], dict[str, str] | None]:
    """File names in order, and where each tensor lies (None: wherever it is found)."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        if not (folder / "model.safetensors").is_file():
            raise UsageError(f"{folder} holds neither model.safetensors nor model.safetensors.index.json")
        return ["model.safetensors"], None
    place = read_json(index).get("weight_map")
    if not isinstance(place, dict) or not place:
        raise UsageError(f"{index} holds no weight_map")
    for name, shard in place.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise UsageError(
                f"{index}: {name} is placed in {shard!r}, expected the name of a .safetensors file beside it"
            )
    shards = sorted(set(place.values()))
    try:
        absent = [shard for shard in shards if not (folder / shard).is_file()]
    except OSError as error:  # a name that no file can have
        raise UsageError(f"{index} names a shard that cannot be read: {error.strerror or error}") from error
    if absent:
        raise UsageError(f"{folder}: shard {some(absent)} missing, which {index.name} names; fetch it again")
    return shards, place


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is damaged or was cut short ({error}); fetch it again") from error
