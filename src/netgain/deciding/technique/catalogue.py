"""The techniques that netgain can propose. A hypothesis table, never an automatic rule: each is predicted, then measured."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from netgain.deciding.technique.blending import Blending
from netgain.deciding.technique.draft import HeadSpeculation, ModelSpeculation
from netgain.deciding.technique.kv_compression import LosslessCompression, LossyCompression
from netgain.deciding.technique.kv_int8 import KvInt8
from netgain.deciding.technique.ngram import NgramSpeculation
from netgain.deciding.technique.protocol import Technique
from netgain.deciding.technique.suffix import SuffixSpeculation
from netgain.deciding.technique.tiering import KVTiering
from netgain.errors import UsageError

CATALOGUE: Mapping[str, Technique] = MappingProxyType(
    {
        "ngram": NgramSpeculation(),
        "suffix": SuffixSpeculation(),
        "draft": ModelSpeculation(),
        "heads": HeadSpeculation(),
        "kv-int8": KvInt8(),
        "kv-tiers": KVTiering(),
        "kv-compression": LosslessCompression(),
        "kv-compression-lossy": LossyCompression(),
        "kv-blending": Blending(),
    }
)


def technique(name: str) -> Technique:
    """A member by name. Raises UsageError with the nearest name."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    near = get_close_matches(name, CATALOGUE, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"there is no technique {name!r}: {hint}known are {', '.join(CATALOGUE)}")
