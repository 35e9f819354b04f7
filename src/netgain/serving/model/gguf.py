"""GGUF files read in place: metadata and tensor directory parsed with every length checked against the file, so that a
truncated or hostile file is refused before anything is allocated for it; tensors are views of the mapped file."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from netgain.errors import UsageError
from netgain.serving.model.gguf_types import TENSOR_TYPES, UNSUPPORTED, TensorType, dequantise

# GGUF's numbers for scalar metadata types -> struct format; 8 is a string and 9 an array.
_SCALARS = MappingProxyType({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"})
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """One entry of the directory. `shape` is outermost first, as numpy has it; `offset` counts from the file's start."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int

    @property
    def row_bytes(self) -> int:
        return self.shape[-1] // self.type.block * self.type.block_bytes

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape[:-1], dtype=object)) * self.row_bytes if len(self.shape) > 1 else self.row_bytes


class GgufFile:
    """An open GGUF file (little-endian, versions 2 and 3). Raises UsageError when it is not whole and well formed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _map(path)
        cursor = _Cursor(path, self._map)
        if cursor.take(4) != b"GGUF":
            raise UsageError(f"{path} is not a GGUF file (it does not start with 'GGUF')")
        version = cursor.scalar("I")
        if version not in (2, 3):
            raise UsageError(f"{path}: GGUF version {version} (or byte order) is not supported; supported: 2, 3")
        tensors, keys = cursor.count(24), cursor.count(13)
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            name = cursor.string()
            if name in metadata:
                raise UsageError(f"{path}: metadata key {name!r} appears twice")
            metadata[name] = cursor.value(cursor.scalar("I"))
        self.metadata: Mapping[str, Any] = MappingProxyType(metadata)
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(self._directory(cursor, tensors))

    def _directory(self, cursor: _Cursor, count: int) -> dict[str, GgufTensor]:
        entries = [(cursor.string(), cursor.dimensions(), cursor.scalar("I"), cursor.scalar("Q")) for _ in range(count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise UsageError(f"{self.path}: alignment {alignment!r} is not a power of two")
        data = -(-cursor.at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in entries:
            if kind not in TENSOR_TYPES:
                supported = ", ".join(entry.name for entry in TENSOR_TYPES.values())
                raise UsageError(
                    f"{self.path}: tensor {name} has GGUF type {UNSUPPORTED.get(kind, kind)}; supported: {supported}; "
                    "requantise from the original, e.g. to Q4_0, Q4_1 or Q8_0"
                )
            tensor = GgufTensor(name, TENSOR_TYPES[kind], shape, data + offset)
            if shape[-1] % tensor.type.block:
                raise UsageError(
                    f"{self.path}: tensor {name} rows of {shape[-1]} do not divide into {tensor.type.name} blocks"
                )
            if name in tensors:
                raise UsageError(f"{self.path}: tensor {name} appears twice")
            if offset % alignment or tensor.offset + tensor.nbytes > len(self._map):
                raise UsageError(
                    f"{self.path}: tensor {name} ends at byte {tensor.offset + tensor.nbytes} but the file has "
                    f"{len(self._map)}; it is damaged or was cut short, fetch it again"
                )
            tensors[name] = tensor
        return tensors

    def raw(self, name: str) -> np.ndarray[Any, Any]:
        """Bytes of a tensor as stored: read-only uint8 [rows, row_bytes], a view of the file (1-d counts as one row)."""
        tensor = self.tensors[name]
        flat = np.frombuffer(self._map, dtype=np.uint8, count=tensor.nbytes, offset=tensor.offset)
        return flat.reshape(-1, tensor.row_bytes)

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """The tensor's numbers, float32 in its own shape (a copy unless it is stored so)."""
        tensor = self.tensors[name]
        return dequantise(self.raw(name), tensor.type.name).reshape(tensor.shape)


class _Cursor:
    """Reads forward through the mapped file; whatever would pass its end is refused."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def need(self, size: int) -> None:
        if size > len(self.data) - self.at:
            raise UsageError(
                f"{self.path}: {size} bytes are announced at byte {self.at} but the file has {len(self.data)}; "
                "it is damaged or was cut short, fetch it again"
            )

    def take(self, size: int) -> bytes:
        self.need(size)
        self.at += size
        return self.data[self.at - size : self.at]

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def count(self, least_bytes: int) -> int:
        """A number of items that each take at least `least_bytes`."""
        count = int(self.scalar("Q"))
        self.need(count * least_bytes)
        return count

    def string(self) -> str:
        raw = self.take(self.count(1))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.path}: text before byte {self.at} is not valid UTF-8") from error

    def dimensions(self) -> tuple[int, ...]:
        dimensions = self.scalar("I")
        if not 1 <= dimensions <= 4:
            raise UsageError(f"{self.path}: a tensor has {dimensions} dimensions, expected 1 to 4")
        shape = struct.unpack(f"<{dimensions}Q", self.take(8 * dimensions))
        if 0 in shape:
            raise UsageError(f"{self.path}: a tensor has an empty dimension {shape}")
        return shape[::-1]

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth == 2:
            raise UsageError(f"{self.path}: metadata type {kind} before byte {self.at} is not known")
        item = self.scalar("I")
        if item in _SCALARS:
            code = _SCALARS[item]
            count = self.count(struct.calcsize("<" + code))
            return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize("<" + code))))
        count = self.count(8)
        if item == _STRING:
            return self.strings(count)
        return [self.value(item, depth + 1) for _ in range(count)]

    def strings(self, count: int) -> list[str]:
        """`count` strings; vocabularies have a hundred thousand, so this loop stays free of calls per field."""
        data, at, end, length = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from
        found: list[bytes] = []
        for _ in range(count):
            if at + 8 > end:
                break
            size = length(data, at)[0]
            if at + 8 + size > end:
                break
            found.append(data[at + 8 : at + 8 + size])
            at += 8 + size
        self.at = at
        if len(found) < count:
            self.need(end - at + 1)
        try:
            return [text.decode("utf-8") for text in found]
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.path}: text before byte {self.at} is not valid UTF-8") from error


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise UsageError(f"{path} is empty, expected a GGUF file") from error
