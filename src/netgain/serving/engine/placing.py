"""KV that came from tiers, on its way into the pool."""

from collections.abc import Callable, Sequence

from netgain.cost.link import LinkEstimate
from netgain.ledger.clock import Clock
from netgain.serving.engine.kv_load import Load
from netgain.serving.engine.protocols import BlockMemory

PLACED_AT_ONCE = 64  # blocks copied into the pool between two steps, so that running requests are not held up


class Placing:
    """Copies what a load has got into its sequence's blocks. `link` learns what that costs; `rewritten` is told of blocks with
    new content."""

    def __init__(
        self,
        memory: BlockMemory,
        block_bytes: int,
        link: LinkEstimate,
        clock: Clock,
        rewritten: Callable[[Sequence[int]], None],
    ) -> None:
        self._memory, self._block_bytes, self._link, self._clock = memory, block_bytes, link, clock
        self._rewritten = rewritten

    def blocks(self, load: Load) -> None:
        """Whole blocks, at most PLACED_AT_ONCE."""
        count = min(load.ready(), PLACED_AT_ONCE)
        if not count:
            return
        blocks = load.sequence.blocks[load.base + load.next : load.base + load.next + count]
        parts = [part for part in load.arrived[load.next : load.next + count] if part is not None]
        began_s = self._clock.now()
        self._memory.write_blocks(blocks, tuple(zip(*parts, strict=True)))
        self._link.add(count * self._block_bytes, self._clock.now() - began_s)
        self._rewritten(blocks)
        load.arrived[load.next : load.next + count] = [None] * count
        load.next += count

    def layers(self, load: Load, most: int | None = None) -> None:
        """Layers of the tail, at most about as much as `most` blocks have."""
        tail = load.tail
        if tail is None or not tail.to_place:
            return
        first = max(load.next, tail.first)
        blocks = load.sequence.blocks[load.base + first : load.base + load.end]
        if not tail.placed:
            self._rewritten(blocks)
        groups = len(tail.arrived) - tail.placed
        if most is not None:
            groups = min(groups, max(1, most * tail.groups // len(blocks)))
        for group in range(tail.placed, tail.placed + groups):
            came = tail.arrived[group]
            assert came is not None, "a group of layers is placed twice"
            began_s = self._clock.now()
            rows = [row for row in came.layers[first - tail.first :] if row is not None]
            self._memory.write_layers(blocks, tail.starts[group], rows)
            if came.others is not None:
                others = [other for other in came.others[first - tail.first :] if other is not None]
                self._memory.write_planes(blocks, tuple(zip(*others, strict=True)))
            self._link.add(sum(map(len, rows)), self._clock.now() - began_s)
            tail.arrived[group] = None
            tail.placed += 1
