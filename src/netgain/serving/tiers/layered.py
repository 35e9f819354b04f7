"""An object read group of layers by group of layers: each group is checked before it is handed out, so that the first ones can
be used while the last ones are on their way."""

from collections.abc import Callable

import msgspec

from netgain.serving.tiers.medium import Data, Range
from netgain.serving.tiers.object import (
    HEAD_BYTES,
    RAW,
    Expected,
    Head,
    Reason,
    Refused,
    StoredObject,
    check_run,
    checked_head,
    run_layers,
)


def group_starts(layers: int, groups: int) -> tuple[int, ...]:
    """The first layers of about `groups` groups, each of whole runs (see run_layers)."""
    run = run_layers(layers)
    runs = -(-layers // run)
    groups = max(1, min(groups, runs))
    return tuple(run * (runs * group // groups) for group in range(groups))


class LayeredObject:
    """A raw object in the clear, under `address`, of `layers` layers if that is known; a layer takes `layer_bytes`.
    `wanted` says which bytes have the layers up to the one before `end`, `take` is given them: by turns, `end` ascending from
    group to group."""

    def __init__(self, address: bytes, layer_bytes: int, layers: int | None = None) -> None:
        self.address = address
        self.tier: int | None = None  # which has it; set by the stack
        self.purges: int | None = None  # that the stack had seen when it was first asked for; set by the stack
        self._layer_bytes, self._layers = layer_bytes, layers
        self._head: Head | None = None
        self._next = 0  # the first layer that has not come
        self._pieces: list[memoryview] = []
        self._passes = False

    @property
    def head(self) -> Head:
        assert self._head is not None, "nothing has come"
        return self._head

    @property
    def begun(self) -> bool:
        return self._head is not None

    @property
    def header(self) -> memoryview:
        """What comes before the payload."""
        assert self._pieces, "nothing has come"
        return self._pieces[0]

    def passes(self) -> None:
        """Nobody is going to ask for the whole: what was taken is let go of, and what is going to be."""
        self._passes = True
        del self._pieces[1:]

    def in_one(self, end: int) -> int:
        """Of how many such objects the layers up to the one before `end` are about as many bytes as one whole object."""
        return 1 if self._layers is None else max(1, self._layers // max(1, end - self._next))

    def wanted(self, end: int) -> Range:
        if self._head is None:  # where its payload begins is not known yet: at HEAD_BYTES at the latest
            return Range(self.address, 0, HEAD_BYTES + end * self._layer_bytes)
        at = self._head.payload_at
        return Range(self.address, at + self._next * self._layer_bytes, at + end * self._layer_bytes)

    def wanted_bytes(self, end: int) -> int:
        _, start, stop = self.wanted(end)
        return stop - start

    def take(
        self,
        end: int,
        data: Data,
        expected: Expected | None = None,
        check: Callable[[StoredObject], None] | None = None,
    ) -> memoryview | None:
        """The bytes of the layers up to the one before `end`, checked; `check` sees the object without its payload once, and may
        raise Refused. None where it is coded, so that it is of use only whole. Raises Refused, and then has taken nothing."""
        if end <= self._next:
            raise ValueError(f"layer {end - 1} was taken already")
        view, head = memoryview(data), self._head
        before = view[:0]
        if head is None:
            head = checked_head(view, self.address, expected)
            if head.stored.seal is not None:
                raise Refused(Reason.NO_KEY, "sealed, and read as if it were in the clear")
            if head.stored.codec != RAW:
                return None
            if head.layer_bytes != self._layer_bytes:
                raise Refused(Reason.WRONG_LAYOUT, f"{head.stored.tokens} tokens are stored, a whole block is wanted")
            if check is not None:
                check(head.stored)
            before, view = view[: head.payload_at], view[head.payload_at :]
        view = view[: (end - self._next) * self._layer_bytes]
        check_run(head, self._next, end - self._next, view)
        if self._head is None:
            self._pieces.append(memoryview(bytes(before)))  # of its own, so that the rest can be let go of
        self._head, self._next = head, end
        if not self._passes:
            self._pieces.append(view)
        return view

    def whole(self) -> bytes | None:
        """The object, once all of it has come, unless it `passes`."""
        if self._head is None or self._passes or self._next < self._head.stored.part.layers:
            return None
        return b"".join(self._pieces)


class LayersLoaded(msgspec.Struct, frozen=True):
    """Of each block the bytes of one group of layers of the first plane, and with the last group those of the other planes,
    each whole. None where something is missing or damaged. `bytes` came in `seconds`. `dates`: when each block was first
    computed, 0 where that is not known."""

    layers: tuple[memoryview | None, ...]
    others: tuple[tuple[memoryview, ...] | None, ...] | None
    bytes: int
    seconds: float
    dates: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        return None not in self.layers and (self.others is None or None not in self.others)
