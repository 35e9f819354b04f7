"""The seam between a tier and where its bytes lie: memory, a folder, a server. A medium may fail or hang; its tier may not."""

from collections.abc import AsyncIterator, Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

Data = bytes | memoryview
Told = Callable[[str | None], None]  # of an object: that it is kept (None), or why it is not
NO_ROOM = "queue_full"  # as reasons beside the FaultKinds: too much waited already
NOBODYS = "not_asked_for"  # whose it is is not known any more, as after a purge
PURGED = "purged"  # while it waited
GivenUp = Callable[[bytes, Data], None]


class FaultKind(StrEnum):
    """Why a medium did not do as asked."""

    TIMEOUT = "timeout"  # the tier's own bound was reached
    ABANDONED = "abandoned"  # the caller's, which was shorter
    UNREACHABLE = "unreachable"
    FULL = "full"
    READ_ONLY = "read_only"
    TOO_LARGE = "too_large"  # for the whole medium
    BREAKER = "breaker"  # not tried: the server failed lately
    PAUSED = "paused"  # not tried: writing failed lately
    ERROR = "error"


class Fault(Exception):
    """A medium could not do as asked; the tier counts it by `kind` and goes on without."""

    def __init__(self, kind: FaultKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Range(NamedTuple):
    """The bytes from `start` to the one before `end` of what is kept under `key`."""

    key: bytes
    start: int
    end: int


class PinUse(msgspec.Struct, frozen=True):
    """`bytes` are kept from eviction, of at most `room_bytes`, for `tenants`. So far `refused` objects were not, because their
    tenant had its share, and `taken_back` ones no longer, because others asked for theirs."""

    bytes: int
    room_bytes: int
    tenants: int
    refused: int
    taken_back: int


class Usage(msgspec.Struct, frozen=True):
    """What a medium holds of ours; None is not known without asking somebody."""

    objects: int | None = None
    bytes: int | None = None
    capacity_bytes: int | None = None
    evictions: int = 0
    evicted_bytes: int = 0
    leftovers: int = 0  # unfinished objects of writers that died, removed
    foreign: int = 0  # things in our place that are not ours, left alone
    pins: PinUse | None = None  # None: nothing can be pinned there


class Medium(Protocol):
    """Keeps byte strings under 32-byte keys. Called from one event loop. Every method may raise Fault.

    A write is seen whole or not at all, whenever the writer or the medium dies. What was written may be gone later. A call
    that is cancelled leaves the medium as if it had been done or not been made. `outlives`: what is kept is there for other
    processes, also when this one has ended.
    """

    outlives: bool

    async def read(self, keys: Sequence[bytes]) -> list[Data | None]:
        """What is kept under each key, unchecked; None where nothing is. The bytes stay valid as long as they are held."""
        ...

    async def ranges(self, wanted: Sequence[Range]) -> list[Data | None]:
        """As `read`, a part of each: fewer bytes where less is kept. Of an object that is read range by range, those that start
        at 0 count as use."""
        ...

    async def heads(self, keys: Sequence[bytes]) -> list[Data | None]:
        """As `read`, the first HEAD_BYTES of each; does not count as use."""
        ...

    async def write(self, key: bytes, data: Data) -> None:
        """Keep it, making room if need be. What is there already under the key may stay."""
        ...

    async def has(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether each is kept: a hint, it may be gone when it is read."""
        ...

    async def pin(self, keys: Sequence[bytes], for_s: float, owner: str | None = None) -> int:
        """Keep keys of this tenant from eviction for so long, also such as come only now; how many are so kept now. A medium that
        evicts nothing by itself has nothing to do."""
        ...

    async def remove(self, keys: Sequence[bytes]) -> int:
        """Forget keys; returns how many were there."""
        ...

    def pages(self) -> AsyncIterator[list[bytes]]:
        """All keys, in any order, each once, of those that are there from the first page to the last: page by page, so that no
        wait for one grows with how many there are."""
        ...

    async def ping(self) -> None:
        """Returns if the medium would do as asked."""
        ...

    def begin(self) -> None:
        """Start what goes on in the background, on the event loop; may be called again."""
        ...

    async def notices(self) -> tuple[str, ...]:
        """What in the medium's own settings works against keeping KV there, with the mend; for people."""
        ...

    async def shed(self) -> bool:
        """Give up some of what was over the capacity at the start, telling as `on_eviction` says; whether there is more. A medium
        that gives up all of it at once has nothing to do."""
        ...

    def on_eviction(self, given_up: GivenUp) -> bool:
        """From now on call this, on the event loop, with what has to make room, unchecked; nothing is told of what is removed or
        spoilt. False: this medium does not learn what it loses. Called before anything else is."""
        ...

    def usage(self) -> Usage: ...

    async def close(self) -> None:
        """Give back connections, threads and memory; may be called twice."""
        ...


class Still:
    """Of a Medium that does nothing by itself, and has nothing to say of its settings."""

    def begin(self) -> None:
        return

    async def notices(self) -> tuple[str, ...]:
        return ()

    async def shed(self) -> bool:
        return False
