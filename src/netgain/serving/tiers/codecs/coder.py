"""Which codec a store uses for which object, learned while it is used: the one that gets KV there and back soonest, or none."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
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


class CoderStats(msgspec.Struct, frozen=True, kw_only=True):
    """Objects by the name of the codec they were stored with (raw is one), and by codec what coding cost and saved: `raw_bytes`
    that it was given, what they became, and the time; `decode_s` includes codecs of others whose objects were read."""

    stored: dict[str, int]
    raw_bytes: dict[str, int]
    coded_bytes: dict[str, int]
    encode_s: dict[str, float]
    decode_s: dict[str, float]


class Coder:
    """`codecs` by name, in order of preference among equals; `known` what was measured of them before. `when`: code only where
    that is sooner than raw by the links and rates at that time, or always. `also_read`: codecs of others whose objects are
    used, too. Lossy codecs touch the model's KV alone, not what drafts are made of. Called from one thread."""

    def __init__(
        self,
        codecs: Mapping[str, Codec],
        clock: Clock,
        known: Mapping[str, Rates] | None = None,
        when: When = "sooner",
        also_read: Sequence[Codec] = (),
    ) -> None:
        self._codecs = {name: codec for name, codec in codecs.items() if codec.id != RAW}
        self._clock = clock
        self._when = when
        self._learned = {name: LearnedRates((known or {}).get(name)) for name in self._codecs}
        self._read = {codec.id: codec for codec in (*also_read, *self._codecs.values())}
        self._names = {codec.id: name for name, codec in self._codecs.items()}
        self._stored: Counter[str] = Counter()
        self._raw_bytes = self._moved_bytes = 0  # of all objects, in both directions
        self._loaded_bytes = 0
        self._decode_s: defaultdict[str, float] = defaultdict(float)  # by name, those of others too

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
        """Of the namespace of all KV that may pass through here."""
        return coded.numerics(plain, {codec.id: codec for codec in self._codecs.values()})

    def encode(self, stored: StoredObject, links: Sequence[LinkFit | None]) -> StoredObject:
        """Coded for the slowest of the links, or as it is."""
        usable = {name: codec for name, codec in self._codecs.items() if stored.part.plane == TARGET or not codec.lossy}
        size = len(stored.payload)
        name = choose(
            size,
            _slowest(links, size),
            {name: self._learned[name].rates() for name in usable},
            raw=self._when == "sooner",
        )
        found = stored
        if name is not None:
            began_s = self._clock.now()
            found = coded.encoded(stored, usable[name])
            self._learned[name].encoded(size, len(found.payload), self._clock.now() - began_s)
        self._stored[RAW if name is None or found is stored else name] += 1
        self._raw_bytes += size
        self._moved_bytes += len(found.payload)
        return found

    def decode(self, found: StoredObject) -> StoredObject:
        """Raw. Raises Refused."""
        began_s = self._clock.now()
        raw = coded.decoded(found, self._read)
        spent_s, size = self._clock.now() - began_s, len(raw.payload)
        if raw is not found:
            self._decode_s[self._read[found.codec].name] += spent_s
            if name := self._names.get(found.codec):
                self._learned[name].decoded(size, spent_s)
        self._raw_bytes += size
        self._moved_bytes += len(found.payload)
        self._loaded_bytes += size
        return raw

    def in_raw_bytes(self, link: LinkFit | None) -> LinkFit | None:
        """A link as loads of raw KV see it, by the objects so far: fewer bytes pass, and some are decoded. Before the first
        load, decoding is taken to last as long as was measured of the codecs, or as encoding did."""
        if link is None or link.bytes_per_s is None or not self._raw_bytes:
            return link
        per_byte_s = self._moved_bytes / self._raw_bytes / link.bytes_per_s
        if self._loaded_bytes:
            per_byte_s += sum(self._decode_s.values()) / self._loaded_bytes
        else:
            for name, learned in self._learned.items():
                if (rates := learned.rates()) is not None:
                    per_byte_s += self._stored[name] / self._stored.total() / rates.decode_bytes_per_s
        return msgspec.structs.replace(link, bytes_per_s=1 / per_byte_s)

    def stats(self) -> CoderStats:
        return CoderStats(
            stored=dict(self._stored),
            raw_bytes={name: one.raw_bytes for name, one in self._learned.items()},
            coded_bytes={name: one.coded_bytes for name, one in self._learned.items()},
            encode_s={name: one.encode_s for name, one in self._learned.items()},
            decode_s=dict.fromkeys(self._learned, 0.0) | dict(self._decode_s),
        )


def _slowest(links: Sequence[LinkFit | None], size: int) -> LinkFit | None:
    known = [(seconds, link) for link in links if link is not None and (seconds := link.predict_s(size)) is not None]
    return max(known, key=lambda one: one[0])[1] if known else None
