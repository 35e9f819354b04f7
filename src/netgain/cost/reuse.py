"""What a cache of any size would have given: stack distances of recorded prompts (Mattson, Gecsei, Slutz and Traiger, 1970),
so that one pass answers for all sizes at once."""

from collections.abc import Hashable, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt


class Reused(msgspec.Struct, frozen=True):
    """What an LRU cache of `blocks` blocks would have given; None: one that holds everything. Rates are of blocks and of
    requests with at least one; `mean_blocks` is the mean length of a hit that is one (None: there was none)."""

    blocks: int | None
    hit_rate: float
    request_hit_rate: float
    mean_blocks: float | None


class ReuseCurve(msgspec.Struct, frozen=True):
    """`need[i][j]`: the size in blocks from which on an LRU cache has the j-th block of the i-th prompt when it comes, with all
    blocks before it; 0 for a block that has never come before (or follows one), which no size helps."""

    need: tuple[npt.NDArray[np.int64], ...]
    distinct: int

    @property
    def asked(self) -> int:
        """Blocks of all prompts."""
        return sum(map(len, self.need))

    def hits(self, blocks: int | None) -> npt.NDArray[np.int64]:
        """How many leading blocks of each prompt a cache of `blocks` blocks would have had."""
        return np.array([_held(need, blocks) for need in self.need], dtype=np.int64)

    def at(self, blocks: int | None) -> Reused:
        """Raises ValueError where nothing was asked for."""
        if not self.asked:
            raise ValueError("no prompt has a block, so nothing can be said of hits")
        hits = self.hits(blocks)
        some = hits[hits > 0]
        return Reused(
            blocks=blocks,
            hit_rate=float(hits.sum()) / self.asked,
            request_hit_rate=len(some) / len(hits),
            mean_blocks=float(some.mean()) if len(some) else None,
        )


def reuse_curve(prompts: Iterable[Sequence[Hashable]]) -> ReuseCurve:
    """Of prompts in the order of their arrival, each as the keys of its blocks from the beginning on.

    Each prompt first finds its longest prefix that is cached, then uses its blocks from the last to the first, so that the head
    of a prefix, without which its tail is worth nothing, goes last; as netgain's pool does. All blocks count as equally large,
    and a prompt's own blocks are cached when it is computed, without delay. O(n log n) for n blocks.
    """
    items = [list(prompt) for prompt in prompts]
    uses = _Recency(sum(map(len, items)))
    last: dict[Hashable, int] = {}
    need = []
    for prompt in items:
        seen = [uses.since(last[key]) if key in last else 0 for key in prompt]
        need.append(_leading(seen))
        for key in reversed(prompt):
            if key in last:
                uses.forget(last[key])
            last[key] = uses.use()
    return ReuseCurve(tuple(need), len(last))


class _Recency:
    """How many different keys were used since some use: a Fenwick tree over the times of use, a key counting at its last."""

    def __init__(self, uses: int) -> None:
        self._tree = [0] * (uses + 1)
        self._now = 0
        self._kept = 0

    def use(self) -> int:
        self._now += 1
        self._kept += 1
        self._add(self._now, 1)
        return self._now

    def forget(self, time: int) -> None:
        self._kept -= 1
        self._add(time, -1)

    def since(self, time: int) -> int:
        """Different keys used at `time` or later."""
        tree, before, index = self._tree, 0, time - 1
        while index > 0:
            before += tree[index]
            index &= index - 1
        return self._kept - before

    def _add(self, time: int, change: int) -> None:
        tree = self._tree
        while time < len(tree):
            tree[time] += change
            time += time & -time


def _leading(seen: list[int]) -> npt.NDArray[np.int64]:
    """A block is worth having only with those before it: the largest need so far, and none after the first that is new."""
    known = seen.index(0) if 0 in seen else len(seen)
    need = np.zeros(len(seen), dtype=np.int64)
    if known:
        need[:known] = np.maximum.accumulate(seen[:known])
    return need


def _held(need: npt.NDArray[np.int64], blocks: int | None) -> int:
    """`need` rises up to its zeros, so a search would do; counting is as quick for what a prompt has."""
    return int(np.count_nonzero(need) if blocks is None else np.count_nonzero((need > 0) & (need <= blocks)))
