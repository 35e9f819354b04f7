"""Which codec gets KV through a link soonest, if any: encode, move, decode must beat moving it raw."""

import math
from collections.abc import Mapping

import msgspec

from netgain.cost.kv import compressed_s
from netgain.cost.link import LinkFit


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What a codec is worth: raw bytes over coded ones, and raw bytes per second to encode and to decode."""

    ratio: float
    encode_bytes_per_s: float
    decode_bytes_per_s: float

    def seconds(self, raw_bytes: float, bytes_per_s: float) -> float:
        """From raw KV on one side of a link to raw KV on the other, besides the link's latency."""
        return compressed_s(
            raw_bytes, self.ratio, bytes_per_s, raw_bytes / self.encode_bytes_per_s, raw_bytes / self.decode_bytes_per_s
        )

    def break_even_bytes_per_s(self) -> float:
        """The bandwidth above which raw is sooner: 1/B = 1/(r B) + 1/E + 1/D."""
        return (1 - 1 / self.ratio) / (1 / self.encode_bytes_per_s + 1 / self.decode_bytes_per_s)


def choose(raw_bytes: float, link: LinkFit | None, rates: Mapping[str, Rates | None], raw: bool = True) -> str | None:
    """The name of the codec that is soonest, None if none is known to beat raw, as while the link has not been measured. The
    first codec of which nothing is known is used, to learn; `rates` are in order of preference among equals. Without `raw`
    the soonest codec is taken even where raw would beat it."""
    for name, known in rates.items():
        if known is None:
            return name
    if link is None or link.bytes_per_s is None:
        return None if raw else next(iter(rates), None)
    best, least_s = None, raw_bytes / link.bytes_per_s if raw else math.inf
    for name, known in rates.items():
        if known is not None and (needed_s := known.seconds(raw_bytes, link.bytes_per_s)) < least_s:
            best, least_s = name, needed_s
    return best
