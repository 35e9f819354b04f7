"""Which objects go when a tier is full: LRU and ARC over objects of different sizes. Bookkeeping only; owns no bytes."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Protocol


class Eviction(Protocol):
    """What is kept in at most `capacity` bytes. Keys that `add` returns are forgotten: the caller drops their bytes."""

    capacity: int

    @property
    def used_bytes(self) -> int: ...

    def __len__(self) -> int: ...

    def __contains__(self, key: bytes) -> bool: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def size(self, key: bytes) -> int:
        """Bytes of a key that is kept."""
        ...

    def touch(self, key: bytes) -> None:
        """A kept key was used."""
        ...

    def add(self, key: bytes, size: int) -> list[bytes]:
        """Keep one more (one that is there already is touched); returns what has to go. Raises ValueError above capacity."""
        ...

    def remove(self, key: bytes) -> int:
        """Forget a key for another reason than room; returns its bytes, 0 when it is not kept."""
        ...

    def resize(self, capacity: int) -> list[bytes]:
        """Keep at most so much from now on; returns what has to go."""
        ...


class _Recency:
    """An ordered list, oldest first, that knows its bytes."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[bytes, int] = OrderedDict()
        self.bytes = 0

    def push(self, key: bytes, size: int) -> None:
        self.sizes[key] = size
        self.bytes += size

    def pop(self, key: bytes) -> int:
        size = self.sizes.pop(key)
        self.bytes -= size
        return size

    def pop_oldest(self) -> tuple[bytes, int]:
        key, size = self.sizes.popitem(last=False)
        self.bytes -= size
        return key, size


class LRU:
    """The least recently used goes first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._kept = _Recency()

    @property
    def used_bytes(self) -> int:
        return self._kept.bytes

    def __len__(self) -> int:
        return len(self._kept.sizes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept.sizes

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._kept.sizes)

    def size(self, key: bytes) -> int:
        return self._kept.sizes[key]

    def touch(self, key: bytes) -> None:
        if key in self._kept.sizes:
            self._kept.sizes.move_to_end(key)

    def add(self, key: bytes, size: int) -> list[bytes]:
        _check_fits(size, self.capacity)
        if key in self._kept.sizes:
            self._kept.pop(key)
        gone = []
        while self._kept.bytes + size > self.capacity:
            gone.append(self._kept.pop_oldest()[0])
        self._kept.push(key, size)
        return gone

    def remove(self, key: bytes) -> int:
        return self._kept.pop(key) if key in self._kept.sizes else 0

    def resize(self, capacity: int) -> list[bytes]:
        self.capacity = capacity
        gone = []
        while self._kept.bytes > capacity:
            gone.append(self._kept.pop_oldest()[0])
        return gone


class ARC:
    """Adaptive replacement (Megiddo and Modha, FAST 2003), in bytes: what was used once and what was used again are two
    lists, and hits on keys lately evicted from either shift room to it. A scan of new prompts passes through the first
    list and leaves the second alone."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._once, self._often = _Recency(), _Recency()
        self._once_ghosts, self._often_ghosts = _Recency(), _Recency()
        self._once_target = 0.0  # bytes the first list should have

    @property
    def used_bytes(self) -> int:
        return self._once.bytes + self._often.bytes

    def __len__(self) -> int:
        return len(self._once.sizes) + len(self._often.sizes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._once.sizes or key in self._often.sizes

    def __iter__(self) -> Iterator[bytes]:
        yield from self._once.sizes
        yield from self._often.sizes

    def size(self, key: bytes) -> int:
        return self._once.sizes[key] if key in self._once.sizes else self._often.sizes[key]

    def touch(self, key: bytes) -> None:
        if key in self._once.sizes:
            self._often.push(key, self._once.pop(key))
        elif key in self._often.sizes:
            self._often.sizes.move_to_end(key)

    def add(self, key: bytes, size: int) -> list[bytes]:
        _check_fits(size, self.capacity)
        into = self._once
        from_often = False
        if key in self:
            self.remove(key)
            into = self._often
        elif key in self._once_ghosts.sizes:
            gain = max(self._often_ghosts.bytes / max(self._once_ghosts.bytes, 1), 1.0) * size
            self._once_target = min(self._once_target + gain, float(self.capacity))
            self._once_ghosts.pop(key)
            into = self._often
        elif key in self._often_ghosts.sizes:
            loss = max(self._once_ghosts.bytes / max(self._often_ghosts.bytes, 1), 1.0) * size
            self._once_target = max(self._once_target - loss, 0.0)
            self._often_ghosts.pop(key)
            into = self._often
            from_often = True
        gone = []
        while self.used_bytes + size > self.capacity:
            gone.append(self._evict(from_often))
        into.push(key, size)
        self._trim_ghosts()
        return gone

    def remove(self, key: bytes) -> int:
        for kept in (self._once, self._often):
            if key in kept.sizes:
                return kept.pop(key)
        return 0

    def resize(self, capacity: int) -> list[bytes]:
        self.capacity = capacity
        self._once_target = min(self._once_target, float(capacity))
        gone = []
        while self.used_bytes > capacity:
            gone.append(self._evict(False))
        self._trim_ghosts()
        return gone

    def _evict(self, from_often: bool) -> bytes:
        over = self._once.bytes > self._once_target or (from_often and self._once.bytes >= self._once_target)
        if self._once.sizes and (over or not self._often.sizes):
            key, size = self._once.pop_oldest()
            self._once_ghosts.push(key, size)
        else:
            key, size = self._often.pop_oldest()
            self._often_ghosts.push(key, size)
        return key

    def _trim_ghosts(self) -> None:
        while self._once_ghosts.sizes and self._once.bytes + self._once_ghosts.bytes > self.capacity:
            self._once_ghosts.pop_oldest()
        while (
            self._often_ghosts.sizes
            and self.used_bytes + self._once_ghosts.bytes + self._often_ghosts.bytes > 2 * self.capacity
        ):
            self._often_ghosts.pop_oldest()


def _check_fits(size: int, capacity: int) -> None:
    if size > capacity:
        raise ValueError(f"an object of {size:,} bytes in a tier of {capacity:,}")


POLICIES: MappingProxyType[str, Callable[[int], Eviction]] = MappingProxyType({"lru": LRU, "arc": ARC})
