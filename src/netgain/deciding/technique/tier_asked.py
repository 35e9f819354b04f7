"""The tier for KV that a user wants tried, as they name it: dram:SIZE, disk:FOLDER:SIZE or lmcache:SIZE, each SIZE if it
matters."""

import tempfile
from pathlib import Path
from typing import Literal, get_args

import msgspec

from netgain.cost.quantity import size
from netgain.errors import UsageError

Kind = Literal["dram", "disk", "lmcache"]
FORMS = "dram, disk:FOLDER or lmcache, with :SIZE behind it where the size is not to be found by prediction (dram:2GiB)"
_GIB = float(1 << 30)


class TierAsked(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: memory, a folder, or an LMCache server that runs already. `folder`: of a disk tier, in which every start of a
    server gets an empty one of its own. `gib`: how much it may hold; None: the smallest with nearly the best predicted gain."""

    kind: Kind = "dram"
    folder: str = ""
    gib: float | None = None

    @property
    def outlives_its_server(self) -> bool:
        """Whether what one start leaves behind would be there for the next."""
        return self.kind != "dram"


def parse_tier(text: str) -> TierAsked:
    """Raises UsageError for what is no such tier, and for a folder that could not be written."""
    kind, _, rest = text.partition(":")
    if kind == "dram":
        return TierAsked(gib=_gib(rest) if rest else None)
    if kind == "lmcache":
        return TierAsked(kind="lmcache", gib=_gib(rest) if rest else None)
    if kind == "disk":
        folder, colon, told = rest.rpartition(":")
        sized = bool(colon) and told[:1].isdigit() and "/" not in told
        return TierAsked(kind="disk", folder=_folder(folder if sized else rest), gib=_gib(told) if sized else None)
    raise UsageError(f"the tier {text!r} cannot be tried; known are {', '.join(get_args(Kind))}: give {FORMS}")


def _gib(text: str) -> float:
    gib = size(text).value / _GIB
    if gib <= 0.0:
        raise UsageError(f"a tier of {text} holds nothing; give a positive size such as 2GiB")
    return gib


def _folder(text: str) -> str:
    """Absolute, since servers may run elsewhere. Nothing is left there yet."""
    if not text:
        raise UsageError(f"a disk tier needs its folder; give {FORMS}")
    path = Path(text).expanduser().absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with tempfile.TemporaryDirectory(
            dir=there
        ):  # what rights say does not hold everywhere, such as for root in /proc
            return str(path)
    except OSError as error:
        raise UsageError(
            f"the folder {path} of the disk tier cannot be written ({error.strerror or error}); name another"
        ) from error
