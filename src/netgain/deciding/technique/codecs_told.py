"""What a server tells of the codecs for its KV: those it uses, and what was measured of each on its model."""

from collections.abc import Mapping
from typing import Literal, TypeVar

import msgspec

from netgain.cost.compression import Rates

T = TypeVar("T")


class MeasuredCodec(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is what the server's quality gate says; only the first two are served with unless forced."""

    name: str
    lossy: bool
    state: Literal["token-identical", "pass", "fail", "not enough"]
    rates: Rates

    @property
    def usable(self) -> bool:
        return self.state in ("token-identical", "pass")


class CodecsTold(msgspec.Struct, frozen=True, kw_only=True):
    """`measured` on this model, as far as the server knows; `used` are on. `tiers`: where it keeps KV beyond the device, in its
    own words (None: it does not tell)."""

    measured: tuple[MeasuredCodec, ...] = ()
    used: tuple[str, ...] = ()
    tiers: tuple[str, ...] | None = None


def codecs_told(told: Mapping[str, str]) -> CodecsTold:
    """From what /v1/models says, as JSON; what cannot be read is nothing."""
    return CodecsTold(
        measured=_read(told.get("kv_codecs_measured"), tuple[MeasuredCodec, ...]) or (),
        used=_read(told.get("kv_codecs"), tuple[str, ...]) or (),
        tiers=_read(told.get("kv_tiers"), tuple[str, ...]),
    )


def _read(told: str | None, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(told or "", type=kind)
    except msgspec.DecodeError:
        return None
