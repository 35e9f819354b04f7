"""Bookkeeping of the device's KV blocks: who holds which, which can be found by key, which may be evicted."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from netgain.serving.blocks.retention import Retention


class BlockPool:
    """Every block is exactly one of: free, cached (published, held by nobody, evictable) or referenced.

    A published block keeps its key until it is evicted, or is older than `retention` allows, so that any request with the same
    prefix can hold it too.
    """

    def __init__(self, blocks: int, retention: Retention | None = None) -> None:
        self.blocks = blocks
        self.retention = retention or Retention()
        self._free = list(range(blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first
        self._references = [0] * blocks
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._salt_of: dict[int, bytes] = {}  # of published blocks
        self._date_of: dict[int, int] = {}  # of published blocks
        self.evictions = 0

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out now."""
        return len(self._free) + len(self._cached)

    @property
    def free(self) -> int:
        """Blocks that hold nothing anybody could look up."""
        return len(self._free)

    def most_likely_written(self, count: int) -> list[int]:
        """`count` blocks (or all there are that nobody holds) to read anything from: cached ones, then those used last. They
        are not held, so they may be read only before the pool is used again."""
        cached = list(islice(reversed(self._cached), count))
        return cached + list(islice(reversed(self._free), count - len(cached)))

    def lookup(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks of the longest published prefix of `keys`; holds nothing. It ends before a block that is too old, which is
        forgotten."""
        found = []
        oldest, newest = self.retention.dates()
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            if not oldest <= self._date_of[block] <= newest:
                self._expire(block)
                break
            found.append(block)
        return found

    def acquire(self, blocks: Iterable[int]) -> None:
        """Hold blocks that `lookup` found."""
        for block in blocks:
            self._references[block] += 1
            self._cached.pop(block, None)

    def references(self) -> dict[int, int]:
        """How many hold each referenced block."""
        return {block: count for block, count in enumerate(self._references) if count}

    def cached_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` nobody holds, so that acquiring them lowers `available`."""
        return sum(block in self._cached for block in blocks)

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one reference each, evicting the least recently used cached ones when none is free.

        Raises ValueError when fewer are available: callers check `available` first.
        """
        if count > self.available:
            raise ValueError(f"{count} KV blocks wanted, {self.available} available")
        taken = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                self._unpublish(block)
                self.evictions += 1
            self._references[block] = 1
            taken.append(block)
        return taken

    def publish(self, block: int, key: bytes, salt: bytes = b"", dated: int | None = None) -> bool:
        """Make a referenced block, whose tokens are all committed, findable; False where a key that exists already stays where it
        is. `salt` is what its key was salted with, by which `forget` finds it, `dated` when its KV was first computed, in whole
        Unix seconds (None: now)."""
        there = self._block_of.get(key)
        if there is not None and not self.retention.allows(self._date_of[there]):
            self._expire(there)
            there = None
        if there is not None or block in self._key_of:
            return False
        self._block_of[key] = block
        self._key_of[block] = key
        self._salt_of[block] = salt
        self._date_of[block] = self.retention.now() if dated is None else dated
        return True

    def date_of(self, block: int) -> int:
        """When the KV of a published block was first computed, in whole Unix seconds."""
        return self._date_of[block]

    def holds(self, block: int, key: bytes) -> bool:
        """Whether `block` still is the one found under `key`."""
        return self._block_of.get(key) == block

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one reference each, last block first, so that the tail of a prefix is evicted before its head."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._key_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def clear_cache(self) -> int:
        """Forget every published block that nobody holds; returns how many."""
        count = len(self._cached)
        for block in self._cached:
            self._unpublish(block)
            self._free.append(block)
        self._cached.clear()
        return count

    def forget(self, condemned: Callable[[bytes], bool]) -> int:
        """Make what was published under condemned salts unfindable, for whoever holds it its own; returns how many blocks."""
        judged = {salt: condemned(salt) for salt in set(self._salt_of.values())}
        gone = [block for block, salt in self._salt_of.items() if judged[salt]]
        for block in gone:
            self._expire(block)
        return len(gone)

    def _expire(self, block: int) -> None:
        """Nobody finds it any more; who holds it keeps it."""
        self._unpublish(block)
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)

    def _unpublish(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]
        del self._salt_of[block], self._date_of[block]

    def check(self) -> None:
        """Raise AssertionError unless every block is free, cached or referenced, exactly once, and keys are one to one."""
        free, cached = set(self._free), set(self._cached)
        referenced = {block for block, count in enumerate(self._references) if count}
        assert len(free) == len(self._free), "a block is free twice"
        assert all(count >= 0 for count in self._references), "a reference count is negative"
        assert free.isdisjoint(cached), "a block is free and cached"
        assert referenced.isdisjoint(free | cached), "a referenced block is free or cached"
        assert len(free) + len(cached) + len(referenced) == self.blocks, "a block is lost"
        assert {key: block for block, key in self._key_of.items()} == self._block_of, "keys and blocks disagree"
        assert self._salt_of.keys() == self._key_of.keys(), "a published block has no salt, or a salt is left over"
        assert self._date_of.keys() == self._key_of.keys(), "a published block has no date, or a date is left over"
        assert cached <= self._key_of.keys(), "a cached block has no key"
        assert not free & self._key_of.keys(), "a free block has a key"
