"""Blocks on their way by groups of layers."""

from collections.abc import Awaitable, Callable, Sequence

from netgain.ledger.clock import Clock
from netgain.serving.tiers.layered import LayeredObject, LayersLoaded
from netgain.serving.tiers.planes import Plane, part_of
from netgain.serving.tiers.stack import Stack

Planes = tuple[tuple[tuple[memoryview, ...] | None, ...], int, tuple[int, ...]]  # see KVStore.load_planes


class LayeredBlocks:
    """Some blocks on their way. `plane` comes by layers, the others, where there are some, `whole` with its last group."""

    def __init__(
        self,
        stack: Stack,
        clock: Clock,
        root: bytes,
        keys: Sequence[bytes],
        plane: Plane,
        starts: Sequence[int],
        whole: Callable[[float | None], Awaitable[Planes]] | None,
    ) -> None:
        self._stack, self._clock, self._whole = stack, clock, whole
        self._root = root
        self._ends = (*starts[1:], plane.layers)
        layer_bytes = plane.block_bytes // plane.layers
        self._objects = [LayeredObject(part_of(key, plane).address(), layer_bytes, plane.layers) for key in keys]

    async def load(self, group: int, within_s: float | None = None) -> LayersLoaded:
        """The groups are asked for one after the other, as long as they come complete."""
        started_s = self._clock.now()
        layers = await self._stack.load_layers(self._objects, self._ends[group], within_s)
        found = tuple(
            None if data is None or one.head.stored.root != self._root else memoryview(data)
            for one, data in zip(self._objects, layers, strict=True)
        )
        size = sum(len(data) for data in found if data is not None)
        dates = tuple(one.head.stored.written_s or 0 if one.begun else 0 for one in self._objects)
        others = None
        if self._whole is not None and group == len(self._ends) - 1:
            left_s = None if within_s is None else within_s - (self._clock.now() - started_s)
            others, more, of_others = await self._whole(left_s)
            size += more
            dates = tuple(map(min, dates, of_others))
        return LayersLoaded(found, others, size, self._clock.now() - started_s, dates)
