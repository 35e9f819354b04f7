"""The codecs by name, and which arithmetic they use here."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from netgain.errors import Unavailable, UsageError
from netgain.serving.tiers.codecs.arithmetic import Arithmetic
from netgain.serving.tiers.codecs.cachegen import WIDTHS, CacheGen
from netgain.serving.tiers.codecs.codec import Codec
from netgain.serving.tiers.codecs.compiled import Compiled
from netgain.serving.tiers.codecs.fewer_bits import E4M3, Integers
from netgain.serving.tiers.codecs.in_numpy import InNumpy
from netgain.serving.tiers.codecs.lossless import Raw, Zstd
from netgain.serving.tiers.codecs.names import LOSSLESS, unknown

_PLAIN: Mapping[str, Callable[[Arithmetic], Codec]] = MappingProxyType(
    {
        "raw": lambda _: Raw(),
        "zstd": lambda _: Zstd(),
        "fp8": E4M3,
        "int8": lambda arithmetic: Integers(8, arithmetic),
        "int4": lambda arithmetic: Integers(4, arithmetic),
    }
)


def arithmetic() -> Arithmetic:
    """Compiled, or in NumPy where that cannot be had."""
    try:
        return Compiled()
    except Unavailable:
        return InNumpy()


def lossless(arithmetic: Arithmetic) -> list[Codec]:
    """Those that can be had here."""
    found = []
    for name in sorted(LOSSLESS):
        with suppress(Unavailable):
            found.append(build(name, arithmetic))
    return found


def check_name(name: str) -> None:
    """Raises UsageError with the nearest name for what is no codec."""
    if said := unknown(name):
        raise UsageError(said)


def needs_tables(name: str) -> bool:
    return name in WIDTHS


def build(name: str, arithmetic: Arithmetic, tables: bytes | None = None) -> Codec:
    """`tables`: what tables.pack gave for the model, where the codec needs some. Raises UsageError for an unknown name,
    Unavailable where a library is missing, Damaged for tables that are none, ValueError where they are missing."""
    check_name(name)
    if not needs_tables(name):
        return _PLAIN[name](arithmetic)
    if tables is None:
        raise ValueError(f"the codec {name} needs tables of the model")
    return CacheGen(name, tables, arithmetic)
