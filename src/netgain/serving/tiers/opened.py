"""Objects that tiers gave, as KV; and the blocks that their planes make."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from netgain.serving.tiers.object import StoredObject
from netgain.serving.tiers.stack import Came

T = TypeVar("T")


class Opened(NamedTuple):
    """What a tier gave, as KV."""

    came: Came
    found: StoredObject
    raw: StoredObject
    codec: str
    decode_s: float


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """So many at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def blocks_of(parts: Sequence[Opened | None], count: int) -> tuple[tuple[memoryview, ...] | None, ...]:
    """`count` blocks from their planes, plane by plane; None where one is missing."""
    return tuple(_whole(block) for block in zip(*chunks(parts, count), strict=True))


def dates_of(parts: Sequence[Opened | None], count: int) -> tuple[int, ...]:
    """When each of the blocks was first computed, by its oldest plane: Unix seconds, 0 where that is not known."""
    return tuple(
        min(0 if part is None else part.raw.written_s or 0 for part in block)
        for block in zip(*chunks(parts, count), strict=True)
    )


def _whole(block: Sequence[Opened | None]) -> tuple[memoryview, ...] | None:
    parts = tuple(memoryview(part.raw.payload) for part in block if part is not None)
    return parts if len(parts) == len(block) else None
