"""Numbers with units as people write them (16GiB, 25Gbit/s, 40ms, 8/s), read exactly and written back readably.

KiB, MiB, GiB and TiB are powers of 1024; KB, MB, GB and TB powers of 1000. A bit is never guessed: `Gb` is refused.
"""

import math
import re
from collections.abc import Mapping

import msgspec

from netgain.errors import UsageError

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")
_LARGEST = 1e24  # bytes, seconds, things: products of several of them stay finite
_AMBIGUOUS = re.compile(r"[kKmMgGtTpP]?b")
_SIZES: Mapping[str, float] = {
    "B": 1.0,
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGTP", 1)},
    **{f"{prefix}B": 1000.0**power for power, prefix in enumerate("KMGTP", 1)},
    "kB": 1e3,
    "bit": 1 / 8,
    "kbit": 1e3 / 8,
    **{f"{prefix}bit": 1000.0**power / 8 for power, prefix in enumerate("KMGTP", 1)},
    **{f"{prefix}ibit": 1024.0**power / 8 for power, prefix in enumerate("KMGTP", 1)},
}
_RATES: Mapping[str, float] = {
    **{f"{unit}/s": size for unit, size in _SIZES.items()},
    **{f"{prefix}bps": 1000.0**power / 8 for power, prefix in enumerate("KMGTP", 1)},
    "kbps": 1e3 / 8,
}
_TIMES: Mapping[str, float] = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}
_PER_SECOND: Mapping[str, float] = {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}
_COUNTS: Mapping[str, float] = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9}
_SHARES: Mapping[str, float] = {"": 1.0, "%": 0.01}


class Quantity(msgspec.Struct, frozen=True):
    """A value in its base unit (bytes, seconds, per second, or none) and the text that it was read from."""

    value: float
    text: str

    def __str__(self) -> str:
        return self.text


def size(text: str | Quantity) -> Quantity:
    """Bytes: 16GiB, 500MB, 12kB. Raises UsageError, as all readers here."""
    return _read(text, _SIZES, "a size", "16GiB or 500MB")


def bandwidth(text: str | Quantity) -> Quantity:
    """Bytes per second: 12GiB/s, 25Gbit/s, 100Gbps."""
    return _read(text, _RATES, "a bandwidth", "12GiB/s or 25Gbit/s")


def duration(text: str | Quantity) -> Quantity:
    """Seconds: 40ms, 2s, 5us, 3min."""
    return _read(text, _TIMES, "a time", "40ms or 2s")


def frequency(text: str | Quantity) -> Quantity:
    """Per second: 8/s, 30/min."""
    return _read(text, _PER_SECOND, "a rate", "8/s or 30/min")


def amount(text: str | Quantity) -> Quantity:
    """A number of things (tokens, requests), which may be written 100K or 1.5M: powers of 1000."""
    return _read(text, _COUNTS, "a number", "5500 or 100K")


def money(text: str | Quantity) -> Quantity:
    """A price or cost in whatever currency, without a unit: 2.50."""
    return _read(text, {"": 1.0}, "a price", "2.50")


def share(text: str | Quantity) -> Quantity:
    """A share between 0 and 1: 0.8 or 80%."""
    found = _read(text, _SHARES, "a share", "0.8 or 80%")
    if found.value > 1.0:
        raise UsageError(f"{text!r} is more than everything; give a share between 0 and 1, such as 0.8 or 80%")
    return found


def shares(text: str) -> tuple[Quantity, ...]:
    """Several shares, separated by commas."""
    return tuple(share(part) for part in text.split(","))


def _read(text: str | Quantity, units: Mapping[str, float], what: str, example: str) -> Quantity:
    if isinstance(text, Quantity):  # the default of an option
        return text
    found = _NUMBER.fullmatch(text)
    if not found:
        raise UsageError(f"{text!r} is not {what}; write it as in {example}")
    number, unit = found.groups()
    value = float(number.replace("_", "").replace(",", ""))
    if value < 0.0 or not math.isfinite(value):
        raise UsageError(f"{text!r} is not {what}: it must be a finite number of at least 0, as in {example}")
    value *= units[_known(unit, units, text, what, example)]
    if value > _LARGEST:
        raise UsageError(f"{text!r} is more than {what} that can be meant; write it as in {example}")
    return Quantity(value, text.strip())


def _known(unit: str, units: Mapping[str, float], text: str, what: str, example: str) -> str:
    """The unit as it is listed. Case decides nothing but bits against bytes, where it is too easily mistaken."""
    if unit in units:
        return unit
    if not unit:
        raise UsageError(f"{text!r} has no unit; write {what} as in {example}")
    body, per = (unit[:-2], "/s") if unit.endswith("/s") else (unit, "")
    if units in (_SIZES, _RATES):
        if _AMBIGUOUS.fullmatch(body):
            prefix = body[:-1]
            raise UsageError(f"{text!r} could mean bits or bytes; write {prefix}bit{per} or {prefix.upper()}B{per}")
        folded = {known.lower(): known for known in units}
        if unit.lower() in folded:
            return folded[unit.lower()]
    raise UsageError(f"{text!r} is not {what}: the unit {unit!r} is unknown; write it as in {example}")


def write_size(value: float, per_second: bool = False) -> str:
    """Bytes, in the largest binary unit that leaves at least 1."""
    scaled, unit = value, "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(scaled) < 1024.0:
            break
        scaled, unit = scaled / 1024.0, larger
    number = f"{scaled:.0f}" if unit == "B" and scaled == round(scaled) else f"{scaled:.4g}"
    return f"{number} {unit}{'/s' if per_second else ''}"


def write_time(seconds: float) -> str:
    """Seconds, in the unit that reads best; "never" where it is infinite."""
    if math.isinf(seconds):
        return "never"
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= length:
            return f"{seconds / length:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns" if seconds else "0 s"


def write_number(value: float) -> str:
    """A plain number: grouped digits where it is whole, else five of them."""
    if math.isinf(value):
        return "infinite"
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.5g}"
