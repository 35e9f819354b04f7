"""Keys that may not go before a time, over any eviction policy: in a bounded share of the room, which the others go without and
which tenants divide among themselves."""

import heapq
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from netgain.serving.tiers.eviction import Eviction
from netgain.serving.tiers.medium import PinUse

SHARE = 0.5
_WANTED = 1 << 16  # pins of keys that are not kept yet


class Pinning:
    """An Eviction (see there) whose pinned keys are out of the policy's reach until their time is over. A key may be pinned
    before it is kept. What would exceed the share of pins is kept as any other.

    An owner may pin as much as is free. Where nothing is, one who has less than an equal part (of the owners that have pins, and
    this one) gets it from whoever has most, what they pinned last first: nobody is left less than an equal part."""

    def __init__(
        self, policy: Eviction, share: float = SHARE, now_s: Callable[[], float] = time.monotonic, wanted: int = _WANTED
    ) -> None:
        """`wanted` pins are remembered, also of keys that are not kept."""
        self.capacity = policy.capacity
        self._wanted = wanted
        self._policy = policy
        self._most = int(share * policy.capacity)
        self._now_s = now_s
        self._until_s: dict[bytes, float] = {}  # also of keys that are not kept
        self._owner_of: dict[bytes, str | None] = {}  # of the same
        self._asked: defaultdict[str | None, dict[bytes, None]] = defaultdict(
            dict
        )  # the same by owner, the last one last
        self._held: defaultdict[str | None, dict[bytes, None]] = defaultdict(dict)  # of these, such as are kept
        self._held_bytes: Counter[str | None] = Counter()
        self._refused = self._taken_back = 0
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

    @property
    def use(self) -> PinUse:
        tenants = sum(1 for size in self._held_bytes.values() if size)
        return PinUse(self._pinned_bytes, self._most, tenants, self._refused, self._taken_back)

    def pin(self, keys: Sequence[bytes], for_s: float, owner: str | None = None) -> int:
        """Keep these keys of that owner for so long, counted from now; how many are kept and pinned."""
        self._expire()
        until_s = self._now_s() + for_s
        for key in keys:
            known = self._until_s.get(key)
            if known is None and len(self._until_s) >= self._wanted and not self._forget_one(owner):
                self._refused += 1
                continue
            if known is None:
                heapq.heappush(self._ends, (until_s, key))
                self._owner_of[key] = owner
                self._asked[owner][key] = None
            self._until_s[key] = until_s if known is None else max(until_s, known)
            if key in self._policy and self._fits(self._policy.size(key), self._owner_of[key]):
                self._hold(key, self._policy.remove(key))
        self._policy.resize(self.capacity - self._pinned_bytes)  # by what moved out of it: nothing has to go
        return sum(key in self._sizes for key in keys)

    def add(self, key: bytes, size: int) -> list[bytes]:
        self._expire()
        if key in self._sizes:
            self.remove(key)
        if self._until_s.get(key, 0.0) > self._now_s() and self._fits(size, self._owner_of[key]):
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
        owner = self._owner_of[key]
        del self._held[owner][key]
        self._held_bytes[owner] -= size
        self._pinned_bytes -= size
        self._policy.resize(self.capacity - self._pinned_bytes)
        return size

    def resize(self, capacity: int) -> list[bytes]:
        self._release_all()
        self._most = int(self._most * capacity / max(1, self.capacity))
        self.capacity = capacity
        return self._policy.resize(capacity)

    def _fits(self, size: int, owner: str | None) -> bool:
        """Whether that owner may pin so much more, taken back from others if need be."""
        share = self._most // len({owner, *(one for one, held in self._held_bytes.items() if held)})
        while self._pinned_bytes + size > self._most:
            most = max(self._held_bytes, key=self._held_bytes.__getitem__, default=owner)
            if self._held_bytes[owner] + size > share or most == owner or self._held_bytes[most] <= share:
                self._refused += 1
                return False
            self._give_back(next(reversed(self._held[most])))
        return True

    def _give_back(self, key: bytes) -> None:
        """A pin ends before its time."""
        self._taken_back += key in self._sizes
        self._until_s[key] = 0.0  # its entry among the ends goes with the next ones
        self._release(key)

    def _forget_one(self, owner: str | None) -> bool:
        """Make room among the keys that are remembered, at the cost of who has more of them than an equal part."""
        others = {one: len(keys) for one, keys in self._asked.items() if keys and one != owner}
        share = self._wanted // (len(others) + 1)
        most = max(others, key=others.__getitem__, default=owner)
        if most == owner or others[most] <= share or len(self._asked[owner]) >= share:
            return False
        key = next(reversed(self._asked[most]))
        self._give_back(key)
        self._forget(key)
        return True

    def _forget(self, key: bytes) -> None:
        del self._until_s[key]
        del self._asked[self._owner_of.pop(key)][key]

    def _hold(self, key: bytes, size: int) -> None:
        owner = self._owner_of[key]
        self._sizes[key] = size
        self._held[owner][key] = None
        self._held_bytes[owner] += size
        self._pinned_bytes += size

    def _expire(self) -> None:
        """Give keys whose time is over to the policy, as newly used."""
        now_s = self._now_s()
        while self._ends and self._ends[0][0] <= now_s:
            _, key = heapq.heappop(self._ends)
            until_s = self._until_s.get(key)
            if until_s is None:
                continue
            if until_s > now_s:  # pinned for longer since
                heapq.heappush(self._ends, (until_s, key))
            else:
                self._release(key)
                self._forget(key)

    def _release_all(self) -> None:
        for key in list(self._sizes):
            self._release(key)
        for key in list(self._until_s):
            self._forget(key)
        self._ends.clear()

    def _release(self, key: bytes) -> None:
        if key in self._sizes:
            size = self.remove(key)
            self._policy.add(key, size)  # fits: the room came back with it


def pins_of(eviction: Eviction) -> PinUse | None:
    """None where it pins nothing."""
    return eviction.use if isinstance(eviction, Pinning) else None
