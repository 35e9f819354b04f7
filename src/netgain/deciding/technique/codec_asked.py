"""The codec for stored KV that a user wants tried, with what it saves and takes where the engine has not measured that itself,
and what an engine's own counters say was loaded from beyond the device."""

import math

import msgspec

from netgain.cost.compression import Rates
from netgain.cost.quantity import bandwidth
from netgain.errors import UsageError

FORMS = "NAME, or NAME:ratio=2.5,encode=1GB/s,decode=2GB/s,url=redis://HOST:PORT"


class CodecAsked(msgspec.Struct, frozen=True, kw_only=True):
    """`ratio`: raw bytes over coded ones; `encode` and `decode`: raw bytes per second. None: not told. `url`: of the store that
    holds coded KV, where the engine has to be told."""

    name: str
    ratio: float | None = None
    encode: float | None = None
    decode: float | None = None
    url: str | None = None

    @property
    def rates(self) -> Rates | None:
        """None where a figure is missing."""
        if self.ratio is None or self.encode is None or self.decode is None:
            return None
        return Rates(ratio=self.ratio, encode_bytes_per_s=self.encode, decode_bytes_per_s=self.decode)


class KVMoved(msgspec.Struct, frozen=True, kw_only=True):
    """What the server loaded from beyond the device while the baseline was recorded: `bytes` in `seconds`, as `source` says."""

    bytes: float
    seconds: float
    source: str


def parse_codec(text: str) -> CodecAsked:
    """Raises UsageError."""
    name, _, rest = text.partition(":")
    found: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        field, equals, value = part.partition("=")
        if field not in ("ratio", "encode", "decode", "url") or not equals or not value:
            raise UsageError(f"{part!r} says nothing of the codec {name}; give {FORMS}")
        found[field] = value
    if not name:
        raise UsageError(f"the codec {text!r} has no name; give {FORMS}")
    return CodecAsked(
        name=name,
        ratio=_ratio(found["ratio"]) if "ratio" in found else None,
        encode=_rate(found["encode"]) if "encode" in found else None,
        decode=_rate(found["decode"]) if "decode" in found else None,
        url=found.get("url"),
    )


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if not 1.0 <= ratio < math.inf:
        raise UsageError(f"the codec's ratio is {text!r}; give raw bytes over coded ones, such as 2.5")
    return ratio


def _rate(text: str) -> float:
    rate = bandwidth(text).value
    if rate <= 0.0:
        raise UsageError(f"a codec at {text} never ends; give a positive bandwidth such as 1GB/s")
    return rate
