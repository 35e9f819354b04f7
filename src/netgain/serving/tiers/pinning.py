"""Keys that may not go before a time, over any eviction policy: in a bounded share of the room, which the others go without."""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence

from netgain.serving.tiers.eviction import Eviction

SHARE = 0.5
_WANTED = 1 << 16  # pins of keys that are not kept yet


class Pinning:
    """An Eviction (see there) whose pinned keys are out of the policy's reach until their time is over. A key may be pinned
    before it is kept. What would exceed the share of pins is kept as any other."""

    def __init__(self, policy: Eviction, share: float = SHARE, now_s: Callable[[], float] = time.monotonic) -> None:
        self.capacity = policy.capacity
        self._policy = policy
        self._most = int(share * policy.capacity)
        self._now_s = now_s
        self._until_s: dict[bytes, float] = {}  # also of keys that are not kept
        self._sizes: dict[bytes, int] = {}  # of pinned keys that are kept
        self._ends: list[tuple[float, bytes]] = []  # of each pinned key one, which may have moved back since
        self._pinned_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._policy.used_bytes + self._pinned_bytes

    @property
    def pinned_bytes(self) -> int:
        return self._pinned_bytes

    def __len__(self) -> int:
        return len(self._policy) + len(self._sizes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._sizes or key in self._policy

    def __iter__(self) -> Iterator[bytes]:
        yield from self._policy
        yield from self._sizes

    def size(self, key: bytes) -> int:
        return self._sizes[key] if key in self._sizes else self._policy.size(key)

    def touch(self, key: bytes) -> None:
        if key not in self._sizes:
            self._policy.touch(key)

    def pin(self, keys: Sequence[bytes], for_s: float) -> int:
        """Keep these keys for so long, counted from now; how many are kept and pinned."""
        self._expire()
        until_s = self._now_s() + for_s
        for key in keys:
            known = self._until_s.get(key)
            if known is None and len(self._until_s) >= _WANTED:
                continue
            if known is None:
                heapq.heappush(self._ends, (until_s, key))
            self._until_s[key] = until_s if known is None else max(until_s, known)
            if key in self._policy and self._fits(self._policy.size(key)):
                self._hold(key, self._policy.remove(key))
        self._policy.resize(self.capacity - self._pinned_bytes)  # by what moved out of it: nothing has to go
        return sum(key in self._sizes for key in keys)

    def add(self, key: bytes, size: int) -> list[bytes]:
        self._expire()
        if key in self._sizes:
            self.remove(key)
        if key in self._until_s and self._fits(size):
            self._policy.remove(key)
            self._hold(key, size)
            return self._policy.resize(self.capacity - self._pinned_bytes)
        if size > self._policy.capacity and size <= self.capacity:
            self._release_all()  # a pin never keeps out what fits into the tier
        return self._policy.add(key, size)

    def remove(self, key: bytes) -> int:
        if key not in self._sizes:
            return self._policy.remove(key)
        size = self._sizes.pop(key)
        self._pinned_bytes -= size
        self._policy.resize(self.capacity - self._pinned_bytes)
        return size

    def resize(self, capacity: int) -> list[bytes]:
        self._release_all()
        self._most = int(self._most * capacity / max(1, self.capacity))
        self.capacity = capacity
        return self._policy.resize(capacity)

    def _fits(self, size: int) -> bool:
        return self._pinned_bytes + size <= self._most

    def _hold(self, key: bytes, size: int) -> None:
        self._sizes[key] = size
        self._pinned_bytes += size

    def _expire(self) -> None:
        """Give keys whose time is over to the policy, as newly used."""
        now_s = self._now_s()
        while self._ends and self._ends[0][0] <= now_s:
            _, key = heapq.heappop(self._ends)
            until_s = self._until_s[key]
            if until_s > now_s:  # pinned for longer since
                heapq.heappush(self._ends, (until_s, key))
            else:
                del self._until_s[key]
                self._release(key)

    def _release_all(self) -> None:
        self._ends.clear()
        self._until_s.clear()
        for key in list(self._sizes):
            self._release(key)

    def _release(self, key: bytes) -> None:
        if key in self._sizes:
            size = self.remove(key)
            self._policy.add(key, size)  # fits: the room came back with it
