"""A coder codes what pays, reads what it can, and tells what loading costs in bytes of raw KV."""

import msgspec
import pytest

from netgain.cost.compression import Rates
from netgain.cost.link import LinkFit
from netgain.ledger.clock import VirtualClock
from netgain.serving.tiers.codecs.coder import Coder
from netgain.serving.tiers.object import Refused
from tests.serving.tiers.codecs.test_coded import stored

SLOW, FAST = LinkFit(0.0, 1e6, 0.0, 9), LinkFit(0.0, 1e11, 0.0, 9)
KNOWN = {"int4": Rates(ratio=2.5, encode_bytes_per_s=1e9, decode_bytes_per_s=1e9)}


def coder(codecs, *names, **options):
    return Coder({name: codecs[name] for name in names}, VirtualClock(), **options)


def test_the_slowest_tier_decides(in_c):
    one = coder(in_c, "int4", known=KNOWN)
    assert one.encode(stored(), [FAST, SLOW, None]).codec == "int4.1"
    assert coder(in_c, "int4", known=KNOWN).encode(stored(), [FAST]).codec == "raw"
    assert coder(in_c, "int4", known=KNOWN, when="always").encode(stored(), [FAST]).codec == "int4.1"
    assert coder(in_c).encode(stored(), [SLOW]).codec == "raw"


def test_drafts_planes_are_never_rounded(in_c):
    features = msgspec.structs.replace(stored(), part=msgspec.structs.replace(stored().part, plane="features"))
    assert coder(in_c, "int4", when="always").encode(features, [SLOW]).codec == "raw"
    assert coder(in_c, "int4", "zstd", when="always").encode(features, [SLOW]).codec == "zstd.1"


def test_objects_of_other_codecs_are_read_only_where_told(in_c):
    written = coder(in_c, "zstd", when="always").encode(stored(), [SLOW])
    with pytest.raises(Refused):
        coder(in_c).decode(written)
    reader = coder(in_c, also_read=[in_c["zstd"]])
    assert bytes(reader.decode(written).payload) == stored().payload
    assert reader.stats().decode_s == {"zstd": 0.0}  # no time passes here
    assert reader.ids == {"raw", "zstd.1"}
    assert reader.numerics("n") == "n"
    assert not reader.lossy


def test_a_link_is_told_in_bytes_of_raw_kv(in_c):
    one = coder(in_c, "int4", known=KNOWN)
    assert one.in_raw_bytes(SLOW) == SLOW
    found = one.encode(stored(), [SLOW])
    ratio = len(stored().payload) / len(found.payload)
    told = one.in_raw_bytes(SLOW)
    assert told.bytes_per_s == pytest.approx(1 / (1 / (ratio * 1e6) + 1e-9))
    assert one.in_raw_bytes(None) is None
    one.decode(found)
    assert one.in_raw_bytes(SLOW).bytes_per_s == pytest.approx(ratio * 1e6)  # decoding took no virtual time
    assert one.stats().stored == {"int4": 1}
