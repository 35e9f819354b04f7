"""Which codec a store uses for which object in which tier, learned while it is used: the one that gets KV there and back soonest,
or none."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from netgain.cost.compression import Rates, choose
from netgain.cost.link import LinkFit
from netgain.ledger.clock import Clock
from netgain.serving.tiers.codecs import coded
from netgain.serving.tiers.codecs.adaptive import LearnedRates
from netgain.serving.tiers.codecs.codec import Codec
from netgain.serving.tiers.object import RAW, TARGET, StoredObject

When = Literal["sooner", "always"]


class TierCodecs(msgspec.Struct, frozen=True):
    """What objects of one tier may be coded with, in order of preference among equals; and when: only where that is known to be
    sooner than raw by the tier's link and the codecs' rates at that time, or always."""

    names: tuple[str, ...] = ()
    when: When = "sooner"


class CoderStats(msgspec.Struct, frozen=True, kw_only=True):
    """Of one tier: objects by the name of the codec they were stored with (raw is one); by codec, what was coded for it, what
    that became, and the time. What several tiers take in one form is encoded once, and its time counted at the fastest.
    `decode_s` includes codecs of others whose objects were read. `break_even_bytes_per_s`: the bandwidth above which raw is
    sooner."""

    stored: dict[str, int]
    raw_bytes: dict[str, int]
    coded_bytes: dict[str, int]
    encode_s: dict[str, float]
    decode_s: dict[str, float]
    break_even_bytes_per_s: dict[str, float]


class _Passed:
    """What went to one tier and came from it."""

    def __init__(self) -> None:
        self.stored: Counter[str] = Counter()
        self.raw_bytes: Counter[str] = Counter()
        self.coded_bytes: Counter[str] = Counter()
        self.encode_s: defaultdict[str, float] = defaultdict(float)
        self.decode_s: defaultdict[str, float] = defaultdict(float)  # by name, those of others too
        self.all_raw_bytes = self.all_moved_bytes = 0  # of all objects, in both directions
        self.loaded_bytes = 0


class Coder:
    """`codecs` by name; `tiers` says of each tier, fast to slow, which of them it may use; `known` what was measured of codecs
    before. `also_read`: codecs of others whose objects are used, too. Lossy codecs touch the model's KV alone, not what drafts
    are made of, nor chunks. Called from one thread, but for what a `Recoding` does."""

    def __init__(
        self,
        codecs: Mapping[str, Codec],
        clock: Clock,
        tiers: Sequence[TierCodecs],
        known: Mapping[str, Rates] | None = None,
        also_read: Sequence[Codec] = (),
    ) -> None:
        self._codecs = {name: codec for name, codec in codecs.items() if codec.id != RAW}
        self._clock = clock
        self._tiers = tuple(tiers)
        self._learned = {name: LearnedRates((known or {}).get(name)) for name in self._codecs}
        self._read = {codec.id: codec for codec in (*also_read, *self._codecs.values())}
        self._names = {codec.id: name for name, codec in self._codecs.items()}
        self._passed = [_Passed() for _ in self._tiers]

    @property
    def ids(self) -> frozenset[str]:
        """What its objects may be coded with, raw included."""
        return frozenset({RAW, *self._read})

    @property
    def codes(self) -> bool:
        """Whether anything is coded here; what others coded is read all the same."""
        return bool(self._codecs)

    @property
    def lossy(self) -> bool:
        return any(codec.lossy for codec in self._codecs.values())

    def numerics(self, plain: str) -> str:
        """Of the namespace of all KV that may pass through here, whichever tier it comes from."""
        return coded.numerics(plain, {codec.id: codec for codec in self._codecs.values()})

    def forms(
        self, stored: StoredObject, tiers: Mapping[int, LinkFit | None], have: StoredObject | None = None
    ) -> Iterator[tuple[StoredObject, list[int]]]:
        """The raw object as each of `tiers` should get it, by its link: every form once, with the tiers that take it. `have` is a
        form of it that is there already."""
        wanted: defaultdict[str, list[int]] = defaultdict(list)
        for tier, link in sorted(tiers.items()):
            wanted[self._chosen(stored, tier, link)].append(tier)
        for name, takers in wanted.items():
            yield self._form(stored, name, takers, have), takers

    def recoding(self, found: StoredObject, source: int, tier: int, link: LinkFit | None) -> "Recoding":
        """What it takes to have an object of the tier `source` in the form that is right for another one."""
        return Recoding(self, found, source, tier, link)

    def decode(self, found: StoredObject, tier: int) -> StoredObject:
        """Raw, of an object that came from this tier. Raises Refused."""
        return self._decoded(found, tier, *self._timed(lambda: coded.decoded(found, self._read)))

    def _timed(self, work: Callable[[], StoredObject]) -> tuple[StoredObject, float]:
        began_s = self._clock.now()
        return work(), self._clock.now() - began_s

    def _decoded(self, found: StoredObject, tier: int, raw: StoredObject, spent_s: float) -> StoredObject:
        size, passed = len(raw.payload), self._passed[tier]
        if raw is not found:
            passed.decode_s[self._read[found.codec].name] += spent_s
            if name := self._names.get(found.codec):
                self._learned[name].decoded(size, spent_s)
        passed.all_raw_bytes += size
        passed.all_moved_bytes += len(found.payload)
        passed.loaded_bytes += size
        return raw

    def name_of(self, codec_id: str) -> str:
        """The name of a codec whose objects are read."""
        return RAW if codec_id == RAW else self._read[codec_id].name

    def in_raw_bytes(self, tier: int, link: LinkFit | None) -> LinkFit | None:
        """A tier's link as loads of raw KV see it, by the objects so far: fewer bytes pass, and some are decoded. Before the
        first load, decoding is taken to last as long as was measured of the codecs, or as encoding did."""
        passed = self._passed[tier]
        if link is None or link.bytes_per_s is None or not passed.all_raw_bytes:
            return link
        per_byte_s = passed.all_moved_bytes / passed.all_raw_bytes / link.bytes_per_s
        if passed.loaded_bytes:
            per_byte_s += sum(passed.decode_s.values()) / passed.loaded_bytes
        else:
            for name, learned in self._learned.items():
                if passed.stored[name] and (rates := learned.rates()) is not None:
                    per_byte_s += passed.stored[name] / passed.stored.total() / rates.decode_bytes_per_s
        return msgspec.structs.replace(link, bytes_per_s=1 / per_byte_s)

    def stats(self) -> tuple[CoderStats, ...]:
        """By tier, fast to slow."""
        return tuple(map(self._stats, self._tiers, self._passed))

    def _chosen(self, stored: StoredObject, tier: int, link: LinkFit | None) -> str:
        """The name of the form in which the object should go to a tier."""
        rules = self._tiers[tier]
        rates = {
            name: self._learned[name].rates()
            for name in rules.names
            if name in self._codecs and (stored.part.plane == TARGET or not self._codecs[name].lossy)
        }
        return choose(len(stored.payload), link, rates, raw=rules.when == "sooner") or RAW

    def _form(
        self,
        stored: StoredObject,
        name: str,
        takers: Sequence[int],
        have: StoredObject | None,
        encoded: tuple[StoredObject, float] | None = None,
    ) -> StoredObject:
        """`encoded`: by that codec, and in how many seconds, where that is done already."""
        size, spent_s, found = len(stored.payload), 0.0, stored
        if self._is_there(name, have):
            assert have is not None
            found = have
        elif name != RAW:
            found, spent_s = encoded or self._encoded(stored, name)
            self._learned[name].encoded(size, len(found.payload), spent_s)
        for tier in takers:
            passed = self._passed[tier]
            passed.stored[RAW if found is stored else name] += 1
            passed.all_raw_bytes += size
            passed.all_moved_bytes += len(found.payload)
            if name != RAW:
                passed.raw_bytes[name] += size
                passed.coded_bytes[name] += len(found.payload)
        if name != RAW:
            self._passed[takers[0]].encode_s[name] += spent_s
        return found

    def _is_there(self, name: str, have: StoredObject | None) -> bool:
        return name != RAW and have is not None and have.codec == self._codecs[name].id

    def _encoded(self, stored: StoredObject, name: str) -> tuple[StoredObject, float]:
        return self._timed(lambda: coded.encoded(stored, self._codecs[name]))

    def _stats(self, rules: TierCodecs, passed: _Passed) -> CoderStats:
        own = [name for name in rules.names if name in self._codecs]
        rates = {name: known for name in own if (known := self._learned[name].rates()) is not None}
        return CoderStats(
            stored=dict(passed.stored),
            raw_bytes={name: passed.raw_bytes[name] for name in own},
            coded_bytes={name: passed.coded_bytes[name] for name in own},
            encode_s={name: passed.encode_s[name] for name in own},
            decode_s=dict.fromkeys(own, 0.0) | dict(passed.decode_s),
            break_even_bytes_per_s={name: max(0.0, known.break_even_bytes_per_s()) for name, known in rates.items()},
        )


class Recoding:
    """An object of one tier on its way into the form that is right for another. `decode` and `encode` may be called in any
    thread, in that order; `choose` between them, and `form` at the end, where the coder is called."""

    def __init__(self, coder: Coder, found: StoredObject, source: int, tier: int, link: LinkFit | None) -> None:
        self._coder, self._found, self._source, self._tier, self._link = coder, found, source, tier, link
        self._raw: tuple[StoredObject, float] | None = None
        self._coded: tuple[StoredObject, float] | None = None
        self._name = RAW

    def decode(self) -> None:
        """Raises Refused."""
        self._raw = self._coder._timed(lambda: coded.decoded(self._found, self._coder._read))

    def choose(self) -> bool:
        """Whether it has to be encoded."""
        assert self._raw is not None, "it is not decoded yet"
        raw = self._coder._decoded(self._found, self._source, *self._raw)
        self._name = self._coder._chosen(raw, self._tier, self._link)
        return self._name != RAW and not self._coder._is_there(self._name, self._found)

    def encode(self) -> None:
        assert self._raw is not None, "it is not decoded yet"
        self._coded = self._coder._encoded(self._raw[0], self._name)

    def form(self) -> StoredObject:
        assert self._raw is not None, "it is not decoded yet"
        return self._coder._form(self._raw[0], self._name, [self._tier], self._found, self._coded)
