"""What every KV block consists of: its planes, and the stored object of each."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from netgain.serving.tiers.codecs.coder import Coder
from netgain.serving.tiers.object import RAW, Expected, Part, Shape, StoredObject, pack

Rows = npt.NDArray[np.uint8]


class Plane(msgspec.Struct, frozen=True):
    """One kind of bytes that every block has: `name` says of what (see Part.plane), `shape` how they lie."""

    name: str
    layers: int
    shape: Shape

    @property
    def block_bytes(self) -> int:
        return self.layers * self.shape.token_bytes * self.shape.block_tokens


def expected(
    planes: Sequence[Plane],
    coder: Coder | None = None,
    others: Mapping[str, Shape] | None = None,
    sealed: bool = False,
) -> Expected:
    """What the tiers of a store with these planes, and with objects of `others`, should let through."""
    first, *more = planes
    codecs = frozenset({RAW}) if coder is None else coder.ids
    shapes = {**{plane.name: plane.shape for plane in more}, **(others or {})}
    return Expected(shape=first.shape, codecs=codecs, sealed=sealed, others=shapes)


def object_bytes(planes: Sequence[Plane]) -> list[int]:
    """What a block's object of each plane takes in tiers, headers included."""
    nothing = bytes(32)
    return [len(pack(stored_of(nothing, nothing, plane, np.zeros(plane.block_bytes, np.uint8), 0))) for plane in planes]


def part_of(key: bytes, plane: Plane) -> Part:
    return Part(key=key, first_layer=0, layers=plane.layers, plane=plane.name)


def stored_of(root: bytes, key: bytes, plane: Plane, row: Rows, dated: int) -> StoredObject:
    """One plane of one block, first computed at `dated`, in whole Unix seconds."""
    return StoredObject(
        part=part_of(key, plane),
        root=root,
        shape=plane.shape,
        tokens=plane.shape.block_tokens,
        codec=RAW,
        payload=row.data,
        written_s=dated,
    )
