"""What became of loads, written down once each: in the requests' records, in the counters, and as a handoff for every tier that
something came from. What came for nothing is counted wherever it is noticed."""

from collections import Counter
from collections.abc import Iterable

from netgain.ledger.clock import Clock
from netgain.ledger.collector import Collector
from netgain.ledger.records import Handoff, HandoffKind
from netgain.serving.engine.generation import Generation
from netgain.serving.engine.kv_load import Load
from netgain.serving.tiers.kv_store import KVStore, Loaded
from netgain.serving.tiers.layered import LayersLoaded


class LoadAccount:
    """Of one engine; called by its step loop. `counts` are its cumulative counters, which this adds to.

    Wasted is every block that came and was never placed for its request: behind one that was missing, beyond where a load was
    cut, what the device had got by itself meanwhile, what came after the load had ended; and what was placed for a request that
    then gave its blocks back. A request's record is written when it ends: what comes after that is in counters and handoffs."""

    def __init__(
        self, store: KVStore, block_tokens: int, groups: int, clock: Clock, counts: Counter[str], collector: Collector
    ) -> None:
        """`groups` of layers make a block that comes by layers."""
        self._store, self._block_tokens, self._groups = store, block_tokens, groups
        self._clock, self._counts, self._collector = clock, counts, collector
        self._admitted_s: dict[str, float] = {}

    def admitted(self, name: str, now_s: float) -> None:
        """A request for which tiers were asked got its first blocks."""
        self._admitted_s[name] = now_s

    def answered(self, generation: Generation) -> None:
        """The request has ended: how long it took from there to its first token, if it came so far."""
        since_s = self._admitted_s.pop(generation.request.id, None)
        if since_s is not None and generation.kv is not None and generation.first_token_s is not None:
            generation.kv.actual_s = generation.first_token_s - since_s

    def finished(self, load: Load, now_s: float) -> None:
        """It has brought what it was to bring, or will bring no more."""
        kv, loaded, failed = load.kv, load.next - load.first, load.next < load.end
        kv.loaded_tokens += loaded * self._block_tokens
        kv.failed = kv.failed or failed
        kv.source = "+".join(self._store.tiers[tier] for tier in sorted(set(load.places[load.first : load.end])))
        self._counts["kv_loads"] += 1
        self._counts["kv_loads_failed"] += failed
        self._counts["kv_loaded_tokens"] += loaded * self._block_tokens
        wanted = Counter(load.places[load.first : load.end])
        self._ended(load, wanted, range(load.first, load.next), [*load.outdated, *load.unplaced()], now_s)

    def dropped(self, load: Load, now_s: float) -> None:
        """Nobody wants it any more, whatever of it has come."""
        self._ended(load, Counter(), range(0), [*range(load.first, load.next), *load.outdated, *load.unplaced()], now_s)

    def late(self, load: Load, first: int, loaded: Loaded | None) -> None:
        """Blocks from the one numbered `first` on came when the load was over."""
        if loaded is None:
            return
        came = [first + at for at, block in enumerate(loaded.blocks) if block is not None]
        if came:
            load.told_late(loaded.bytes, loaded.moved_bytes, loaded.decode_s)
        self._wasted_alone(load, Counter(load.places[at] for at in came), loaded.seconds)

    def late_layers(self, load: Load, layers: LayersLoaded | None, first: int) -> None:
        """A group of layers of the blocks from the one numbered `first` on came when nobody waited for it."""
        if layers is None:
            return
        came = Counter(load.places[first + at] for at, one in enumerate(layers.layers) if one is not None)
        if came:
            load.told_late(layers.bytes, layers.bytes, 0.0)
        self._wasted_alone(load, came, layers.seconds, self._groups)

    def _ended(
        self, load: Load, wanted: Counter[int], used: Iterable[int], wasted: Iterable[int], now_s: float
    ) -> None:
        """`wanted` blocks of each tier were to come."""
        load.kv.waited_s += load.waited_s
        load.told_in(load.kv)
        used_from = Counter(load.places[at] for at in used)
        wasted_from = Counter(load.places[at] for at in wasted)
        self._waste(load, wasted_from.total() * self._block_tokens, wasted_from.total() * self._store.block_bytes)
        came = wanted | (used_from + wasted_from)
        for tier, count in sorted(came.items()):
            share = count / came.total()
            self._collector.handoff(
                self._handoff(
                    load,
                    tier,
                    at_s=now_s,
                    used=used_from[tier] * self._block_tokens,
                    wasted=wasted_from[tier] * self._block_tokens,
                    used_bytes=used_from[tier] * self._store.block_bytes,
                    wasted_bytes=wasted_from[tier] * self._store.block_bytes,
                    waited_s=load.waited_s * share,
                    busy_s=load.busy_s * share,
                    hidden_s=max(0.0, load.busy_s - load.waited_s) * share,
                    failed=used_from[tier] < wanted[tier],
                )
            )

    def _wasted_alone(self, load: Load, came: Counter[int], seconds: float, parts: int = 1) -> None:
        """Of blocks of which one of `parts` came, in so many seconds."""
        for tier, count in sorted(came.items()):
            tokens, size = count * self._block_tokens // parts, count * self._store.block_bytes // parts
            self._waste(load, tokens, size)
            busy_s = seconds * count / came.total()
            self._collector.handoff(
                self._handoff(
                    load,
                    tier,
                    at_s=self._clock.now(),
                    used=0,
                    wasted=tokens,
                    used_bytes=0,
                    wasted_bytes=size,
                    waited_s=0.0,
                    busy_s=busy_s,
                    hidden_s=busy_s,
                    failed=False,
                )
            )

    def _waste(self, load: Load, tokens: int, size: int) -> None:
        load.kv.wasted_tokens += tokens
        load.kv.wasted_bytes += size
        self._counts["kv_wasted_tokens"] += tokens
        self._counts["kv_wasted_bytes"] += size

    def _handoff(
        self,
        load: Load,
        tier: int,
        *,
        at_s: float,
        used: int,
        wasted: int,
        used_bytes: int,
        wasted_bytes: int,
        waited_s: float,
        busy_s: float,
        hidden_s: float,
        failed: bool,
    ) -> Handoff:
        return Handoff(
            kind=HandoffKind.KV_TIER,
            source=self._store.tiers[tier],
            target="device",
            at_s=at_s,
            bytes=used_bytes + wasted_bytes,
            used_tokens=used,
            wasted_tokens=wasted,
            wasted_bytes=wasted_bytes,
            waited_s=waited_s,
            busy_s=busy_s,
            hidden_s=hidden_s,
            failed=failed,
            request_id=load.sequence.id,
        )
