"""What one request gets from tiers, from the question until its KV is in the pool; and the bounds on all of it."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile

import msgspec

from netgain.cost.link import LinkFit
from netgain.cost.loading import GROUP_BLOCKS, LAYER_GROUPS
from netgain.ledger.records import KVReuse
from netgain.serving.blocks.retention import Retention
from netgain.serving.engine.generation import Generation
from netgain.serving.engine.sequence import Sequence as Queued
from netgain.serving.tiers.kv_store import Loaded
from netgain.serving.tiers.layered import LayersLoaded
from netgain.serving.tiers.object import RAW

_HARDLY = 0.1  # of a pass


class TieringOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`policy`: "measured" loads what is predicted to be sooner than computing it, "always" whatever is found, "never" nothing
    (KV is stored all the same). `lookup_s` and `load_s` bound the waits of one request for an answer and for its KV; the
    measured policy sets shorter ones. `ahead_bytes` may be fetched for requests that still wait in the queue, `room_bytes`
    copied and not yet queued at the tiers, `copy_bytes` of them between two steps. `group` blocks come in one exchange.
    `close_s`: so long the end waits for what is still to be stored. `pin_s`: no request's prefix is kept from eviction for longer
    (see Request.pin_s). `layer_groups`: the last blocks of a prefix may come in about so many groups of layers, while what
    follows is computed; 1: all come whole."""

    policy: str = "measured"
    lookup_s: float = 0.5
    load_s: float = 10.0
    ahead_bytes: int = 256 << 20
    room_bytes: int = 128 << 20
    copy_bytes: int = 16 << 20
    group: int = GROUP_BLOCKS
    close_s: float = 1.0
    pin_s: float = 3600.0
    layer_groups: int = LAYER_GROUPS


class Tail:
    """The blocks of a load from the one numbered `first` on, which come by groups of layers; `starts` are the first layers of the
    groups. `placed` of them are in the pool."""

    __slots__ = ("arrived", "barred", "came_s", "first", "lost", "passing", "placed", "starts", "took_s")

    def __init__(self, first: int, starts: tuple[int, ...]) -> None:
        self.first = first
        self.starts = starts
        self.arrived: list[LayersLoaded | None] = []  # None: placed
        self.placed = 0
        self.took_s: list[float] = []  # each group
        self.came_s = 0.0  # when the last group did
        self.lost = 0  # of a group that came with gaps, how many blocks' layers did
        self.passing = False  # what follows is computed meanwhile
        self.barred = False  # it was, and had to wait too long

    @property
    def groups(self) -> int:
        return len(self.starts)

    @property
    def to_place(self) -> bool:
        return self.placed < len(self.arrived)

    @property
    def complete(self) -> bool:
        return self.placed == self.groups

    def blocks_worth(self, end: int) -> int:
        """What has come, in blocks, if the load ends at the one numbered `end`."""
        return (len(self.took_s) * (end - self.first) + self.lost) // self.groups

    def take(self, load: "Load", layers: LayersLoaded | None, now_s: float) -> None:
        """The next group has come, or does not."""
        if layers is not None:
            load.busy_s += layers.seconds
            load.bytes += layers.bytes
            load.moved_bytes += layers.bytes
            load.codecs |= {RAW}
        if layers is None or not layers.complete:
            self.lost = 0 if layers is None else sum(one is not None for one in layers.layers)
            load.over = True
            return
        load.dates(self.first, layers.dates)
        self.arrived.append(layers)
        self.took_s.append(layers.seconds)
        self.came_s = now_s

    def hidden_by(self, pass_s: float, now_s: float) -> bool:
        """Whether a pass that takes `pass_s` and begins now finds each group there when it comes to it, or hardly has to wait,
        going by how long the groups took that have come."""
        came = len(self.took_s)
        if not came:
            return False
        each_s = max(statistics.median(self.took_s), self.took_s[-1])
        since_s = now_s - self.came_s
        return all(
            (group + 1 - came) * each_s - since_s <= (group / self.groups + _HARDLY) * pass_s
            for group in range(came, self.groups)
        )


class Load:
    """What one request gets from tiers. Blocks are numbered from `base`, how many the device had; `next` is the first that is
    not in the pool yet, `end` where loading ends. Those from `tail` on come by layers (see Tail), if it is there. `since_s`: the
    request waits for it. `dated` says by key when what came was first computed."""

    __slots__ = (
        "arrived",
        "base",
        "begun_s",
        "busy_s",
        "bytes",
        "cancelled",
        "codecs",
        "dated",
        "decode_s",
        "end",
        "expected_s",
        "first",
        "generation",
        "held_bytes",
        "keys",
        "links",
        "moved_bytes",
        "next",
        "outdated",
        "over",
        "places",
        "since_s",
        "tail",
        "until_s",
        "waited_s",
    )

    def __init__(self, generation: Generation, base: int, keys: Sequence[bytes], now_s: float, until_s: float) -> None:
        self.generation = generation
        self.base = base
        self.keys = keys
        self.begun_s = now_s
        self.until_s = until_s
        self.places: tuple[int, ...] = ()
        self.links: tuple[LinkFit | None, ...] = ()  # what loading from each tier cost when it was asked
        self.tail: Tail | None = None
        self.arrived: list[tuple[memoryview, ...] | None] = []
        self.first = self.next = self.end = 0
        self.since_s: float | None = None
        self.expected_s: float | None = None  # of loading, by the newest prediction
        self.busy_s = self.waited_s = 0.0
        self.bytes = self.moved_bytes = self.held_bytes = 0
        self.codecs: frozenset[str] = frozenset()
        self.decode_s = 0.0
        self.dated: dict[bytes, int] = {}
        self.outdated: list[int] = []  # blocks that came, and are too old to be used
        self.over = False  # nothing more will come
        self.cancelled = False  # nothing more is wanted; read by the job that fetches

    @property
    def sequence(self) -> Queued:
        return self.generation.sequence

    @property
    def kv(self) -> KVReuse:
        assert self.generation.kv is not None
        return self.generation.kv

    @property
    def located(self) -> bool:
        return bool(self.places)

    @property
    def waits(self) -> bool:
        """Whether nothing can be done for it before tiers answer."""
        if self.since_s is None:
            return not self.located
        if self.tail is not None and (self.tail.passing or self.tail.to_place):
            return False
        return not self.over and not self.ready()

    def wants(self, blocks: int) -> None:
        """The first so many that were found are to come."""
        self.end = blocks
        self.arrived = [None] * blocks
        self.sequence.load_from = self.base
        self.sequence.to_load = self.base + blocks

    def came(self, first: int, loaded: Loaded) -> None:
        """Add up what came, from the block numbered `first` on."""
        self.dates(first, loaded.dates)
        self.busy_s += loaded.seconds
        self.bytes += loaded.bytes
        self.moved_bytes += loaded.moved_bytes
        self.codecs |= loaded.codecs
        self.decode_s += loaded.decode_s

    def dates(self, first: int, dates: Sequence[int]) -> None:
        """When the blocks from the one numbered `first` on were first computed; of what came in several parts, the first."""
        for key, date in zip(self.keys[first:], dates, strict=False):
            self.dated[key] = min(date, self.dated.get(key, date))

    def told_in(self, kv: KVReuse) -> None:
        """Write down what came."""
        kv.bytes += self.bytes
        kv.moved_bytes += self.moved_bytes
        kv.decode_s += self.decode_s
        if self.codecs:
            kv.codecs = "+".join(sorted(self.codecs))

    def check_age(self, retention: Retention) -> None:
        """Where something that came while the request waited in the queue has become too old since, all of it is computed."""
        if all(map(retention.allows, self.dated.values())):
            return
        self.outdated += self.unplaced()
        self.arrived = [None] * len(self.arrived)
        self.tail = None
        self.over = self.cancelled = True

    def unplaced(self) -> list[int]:
        """The blocks that have come and were not placed; of those that come by layers as many as make up what came of them."""
        whole = [at for at, block in enumerate(self.arrived) if block is not None]
        if self.tail is None or self.next >= self.end:
            return whole
        return [*whole, *range(self.tail.first, self.tail.first + self.tail.blocks_worth(self.end))]

    def told_late(self, size: int, moved: int, decode_s: float) -> None:
        """Write down what came when it was over."""
        self.kv.bytes += size
        self.kv.moved_bytes += moved
        self.kv.decode_s += decode_s

    def ready(self) -> int:
        """How many whole blocks have come that can be placed."""
        return sum(1 for _ in takewhile(lambda block: block is not None, self.arrived[self.next : self.end]))


def outstanding(loads: Iterable[Load], but: Load) -> Counter[int]:
    """Blocks that each tier still has to send to the others: what is asked of it now comes behind them."""
    found: Counter[int] = Counter()
    for load in loads:
        if load is not but and load.held_bytes and not load.cancelled:
            found.update(load.places[at] for at in range(load.next, load.end) if load.arrived[at] is None)
    return found
