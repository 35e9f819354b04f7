"""KV on its way out: blocks that became findable are copied once their step has answered, so much between two steps, and stored
while others compute."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from netgain.ledger.clock import Clock
from netgain.ledger.collector import Collector
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.protocols import BlockMemory
from netgain.serving.engine.step_plan import Published
from netgain.serving.engine.store_account import Copy, StoreAccount
from netgain.serving.tiers.kv_store import KVStore
from netgain.serving.tiers.planes import Rows
from netgain.serving.tiers.runner import Runner


class _Out(NamedTuple):
    root: bytes
    block: int
    key: bytes
    into: tuple[int, ...]


class Storing:
    """`published` comes with the commits of a step, `flush` before the pool is used again. At most `at_once` bytes, or a block,
    are copied by a flush, first come, first served; what waits stays in the pool, held by its requests or cached, where what was
    used last goes last. Nobody waits for it: what is evicted or forgotten before it was copied is dropped, and counted.
    So is what would be more than `room` bytes that are copied and not yet queued at the tiers."""

    def __init__(
        self,
        store: KVStore,
        memory: BlockMemory,
        pool: BlockPool,
        runner: Runner,
        clock: Clock,
        collector: Collector,
        *,
        block_tokens: int,
        room: int,
        at_once: int,
    ) -> None:
        self.dropped = 0
        self._most = max(1, at_once // store.block_bytes)
        self.not_admitted = [0] * len(store.tiers)
        self._rules = dict(enumerate(store.admissions)) if set(store.admissions) != {None} else {}
        self._store, self._memory, self._pool, self._runner = store, memory, pool, runner
        self._clock = clock
        self.account = StoreAccount(store, block_tokens, clock, collector)
        self._room = room
        self._out: deque[_Out] = deque()
        self._copied: deque[int] = deque()  # bytes of copies that the store has not taken
        self._taken: deque[int] = deque()  # bytes of those that it has taken since; filled by jobs

    def counters(self) -> dict[str, float]:
        """As metrics name them; `name/tier`."""
        kept_out = zip(self._store.tiers, self.not_admitted, strict=True)
        return {"kv_stores_dropped": self.dropped, **{f"tier_not_admitted/{tier}": count for tier, count in kept_out}}

    @property
    def has_work(self) -> bool:
        return bool(self._out)

    def published(self, root: bytes, blocks: Sequence[Published], there: Mapping[bytes, int | None]) -> None:
        """`there` says which tier has a key already, as far as that is known."""
        through = self._store.through
        for block, key in blocks:
            tier = there.get(key)
            into = through if tier is None else tuple(one for one in through if one < tier)
            if self._rules:
                into = self._admitted(key, into, known=tier is not None)
            if into:
                self._out.append(_Out(root, block, key, into))

    def used(self, root: bytes, blocks: Sequence[Published]) -> None:
        """Published blocks are used once more where they are: tiers that wait for a second use take them now."""
        self.hear()
        for block, key in blocks:
            into = tuple(tier for tier, rule in self._rules.items() if rule is not None and rule.used(key))
            if into:
                self._out.append(_Out(root, block, key, into))

    @property
    def waits_for_use(self) -> bool:
        """Whether `used` is of any interest."""
        return bool(self._rules)

    def _admitted(self, key: bytes, tiers: tuple[int, ...], known: bool) -> tuple[int, ...]:
        """Those of `tiers` that take a block now; one `known` to be in another tier was used before."""
        taken = []
        for tier, rule in self._rules.items():
            admits = rule is None or rule.computed(key) or known
            if tier in tiers:
                if admits:
                    taken.append(tier)
                else:
                    self.not_admitted[tier] += 1
        return tuple(taken)

    def drain(self) -> None:
        """Copy all that waits, however long that takes."""
        while self._out:
            self.flush()

    def flush(self) -> None:
        """Copy the next of what was published and hand it over."""
        self.hear()
        kept: list[_Out] = []
        while self._out and len(kept) < self._most:
            one = self._out.popleft()
            if self._pool.holds(one.block, one.key):
                kept.append(one)
            else:
                self._drop([one])
        if sum(self._copied) + len(kept) * self._store.block_bytes > self._room:
            self._drop(kept)
            return
        for root in {one.root: None for one in kept}:
            self._copy([one for one in kept if one.root == root])

    def _drop(self, out: Sequence[_Out]) -> None:
        self.dropped += len(out)
        self._lost((one.key, tier) for one in out for tier in one.into)

    def hear(self) -> None:
        """Of what became of copies."""
        while self._taken:
            self._taken.popleft()
            self._copied.popleft()
        if self.account.has_news:
            self._lost(self.account.take())

    def _lost(self, blocks: Iterable[tuple[bytes, int]]) -> None:
        """Blocks, each with a tier that was to have it and has not: it is offered again when it is used again."""
        for key, tier in blocks:
            if (rule := self._rules.get(tier)) is not None:
                rule.lost(key)

    def _copy(self, out: Sequence[_Out]) -> None:
        began_s = self._clock.now()
        planes = self._memory.read_blocks([one.block for one in out])
        size = len(out) * self._store.block_bytes
        self._copied.append(size)
        copy = self.account.copy([(one.key, one.into) for one in out], self._clock.now() - began_s)
        self._runner.start(self._put(out, planes, [self._pool.date_of(one.block) for one in out], copy))

    async def _put(self, out: Sequence[_Out], planes: Sequence[Rows], dates: Sequence[int], copy: Copy) -> None:
        try:
            keys, into = [one.key for one in out], [one.into for one in out]
            self._store.put(out[0].root, keys, planes, into, dates, copy.told)
        except BaseException:
            copy.failed()
            raise
        finally:
            self._taken.append(len(out) * self._store.block_bytes)
