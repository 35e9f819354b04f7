"""Which codec gets KV through a link soonest, if any: encode, move, decode must beat moving it raw."""

import math
from collections.abc import Mapping

import msgspec

from netgain.cost.kv import compressed_s
from netgain.cost.link import LinkEstimate, LinkFit
from netgain.serving.tiers.object import RAW


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


def choose(raw_bytes: float, link: LinkFit | None, rates: Mapping[str, Rates | None], raw: bool = True) -> str:
    """The name of the codec that is soonest, `raw` if none beats it. While the link or a codec has not been measured, the first
    codec of which nothing is known is used, to learn; `rates` are in order of preference among equals. Without `raw` the
    soonest codec is taken even where raw would beat it."""
    for name, known in rates.items():
        if known is None:
            return name
    if link is None or link.bytes_per_s is None:
        return next(iter(rates), RAW)
    best, least_s = RAW, raw_bytes / link.bytes_per_s if raw or not rates else math.inf
    for name, known in rates.items():
        if known is not None and (needed_s := known.seconds(raw_bytes, link.bytes_per_s)) < least_s:
            best, least_s = name, needed_s
    return best


class LearnedRates:
    """The rates of one codec from its own use; the last 64 objects count."""

    def __init__(self, start: Rates | None = None) -> None:
        self._start = start
        self._encode, self._decode = LinkEstimate(), LinkEstimate()
        self.raw_bytes = self.coded_bytes = 0
        self.encode_s = 0.0

    def encoded(self, raw_bytes: int, coded_bytes: int, seconds: float) -> None:
        self.raw_bytes += raw_bytes
        self.coded_bytes += coded_bytes
        self.encode_s += seconds
        self._encode.add(raw_bytes, seconds)

    def decoded(self, raw_bytes: int, seconds: float) -> None:
        self._decode.add(raw_bytes, seconds)

    def rates(self) -> Rates | None:
        """None before the first object. What has not been decoded yet is taken to decode as measured at the gate, else as
        soon as it was encoded."""
        if not self.coded_bytes:
            return self._start
        encode = _rate(self._encode)
        decode = _rate(self._decode) or (self._start.decode_bytes_per_s if self._start else None) or encode
        if encode is None or decode is None:
            return self._start
        return Rates(ratio=self.raw_bytes / self.coded_bytes, encode_bytes_per_s=encode, decode_bytes_per_s=decode)


def _rate(estimate: LinkEstimate) -> float | None:
    fit = estimate.fit()
    return None if fit is None else fit.bytes_per_s
