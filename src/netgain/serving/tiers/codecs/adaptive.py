"""What a codec is worth, learned from its own use."""

from netgain.cost.compression import Rates
from netgain.cost.link import LinkEstimate


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
