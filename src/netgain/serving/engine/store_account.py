"""What became of copies on their way to tiers, written down once that is known: a handoff for each tier, of what it took and what
it refused, and why."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from netgain.ledger.clock import Clock
from netgain.ledger.collector import Collector
from netgain.ledger.records import Handoff, HandoffKind
from netgain.serving.tiers.kv_store import KVStore
from netgain.serving.tiers.medium import FaultKind

News = Callable[[], None]


class Outcome(NamedTuple):
    """Of some blocks and one tier: those that it has now, and of the others why it has them not."""

    tier: int
    taken: int
    refused: dict[bytes, str]


class Copy:
    """Blocks that were copied together, and the tiers that each is to go to. `told` is called where the store works, once for
    every object of a block and every one of its tiers; `ended` then with each tier's outcome, once that is complete."""

    def __init__(self, wanted: Sequence[tuple[bytes, Sequence[int]]], objects: int, ended: Callable[[Outcome], None]):
        """A block is `objects` objects."""
        self._ended = ended
        self._blocks: dict[int, int] = {}
        for _, tiers in wanted:
            for tier in tiers:
                self._blocks[tier] = self._blocks.get(tier, 0) + 1
        self._left = {tier: count * objects for tier, count in self._blocks.items()}
        self._refused: dict[int, dict[bytes, str]] = {tier: {} for tier in self._blocks}
        self._keys = {tier: [key for key, tiers in wanted if tier in tiers] for tier in self._blocks}

    def told(self, key: bytes, tier: int, why: str | None) -> None:
        """One object of a block is in the tier, or (`why`) is not going to be."""
        if tier not in self._left:
            return
        if why is not None:
            self._refused[tier].setdefault(key, why)
        self._left[tier] -= 1
        if not self._left[tier]:
            self._end(tier)

    def failed(self) -> None:
        """Nobody is going to say more of it."""
        for tier in list(self._left):
            for key in self._keys[tier]:
                self._refused[tier].setdefault(key, FaultKind.ERROR)
            self._end(tier)

    def _end(self, tier: int) -> None:
        del self._left[tier]
        refused = self._refused[tier]
        self._ended(Outcome(tier, self._blocks[tier] - len(refused), refused))


class StoreAccount:
    """Of one engine. `copy` and `take` are called by its step loop; outcomes come from wherever the store works, and `wake` is
    called there when there is one to take."""

    def __init__(self, store: KVStore, block_tokens: int, clock: Clock, collector: Collector) -> None:
        self.wake: News = lambda: None
        self._store, self._block_tokens, self._clock, self._collector = store, block_tokens, clock, collector
        self._outcomes: deque[tuple[Outcome, float]] = deque()  # with the time that copying took for it

    @property
    def has_news(self) -> bool:
        return bool(self._outcomes)

    def copy(self, wanted: Sequence[tuple[bytes, Sequence[int]]], busy_s: float) -> Copy:
        """Blocks whose copying took so long, which tiers share by their numbers of blocks."""
        each_s = busy_s / max(1, sum(len(tiers) for _, tiers in wanted))
        return Copy(wanted, len(self._store.planes), partial(self._came, each_s))

    def take(self) -> list[tuple[bytes, int]]:
        """Write down what is known by now; blocks with tiers that were to have them and have not."""
        lost: list[tuple[bytes, int]] = []
        while self._outcomes:
            outcome, busy_s = self._outcomes.popleft()
            self._write_down(outcome, busy_s)
            lost += [(key, outcome.tier) for key in outcome.refused]
        return lost

    def _came(self, each_s: float, outcome: Outcome) -> None:
        self._outcomes.append((outcome, each_s * (outcome.taken + len(outcome.refused))))
        self.wake()

    def _write_down(self, outcome: Outcome, busy_s: float) -> None:
        refused = len(outcome.refused)
        self._collector.handoff(
            Handoff(
                kind=HandoffKind.KV_TIER,
                source="device",
                target=self._store.tiers[outcome.tier],
                at_s=self._clock.now(),
                bytes=(outcome.taken + refused) * self._store.block_bytes,
                used_tokens=outcome.taken * self._block_tokens,
                wasted_tokens=refused * self._block_tokens,
                wasted_bytes=refused * self._store.block_bytes,
                waited_s=0.0,
                busy_s=busy_s,
                hidden_s=0.0,
                failed=refused > 0,
                why="+".join(sorted(set(outcome.refused.values()))) or None,
            )
        )
