"""A coder codes for each tier what pays there, reads what it can, and tells what loading costs in bytes of raw KV."""

import msgspec
import pytest

from netgain.cost.compression import Rates
from netgain.cost.link import LinkFit
from netgain.ledger.clock import VirtualClock
from netgain.serving.tiers.codecs.coder import Coder, TierCodecs
from netgain.serving.tiers.object import Refused
from tests.serving.tiers.codecs.test_coded import stored

SLOW, FAST = LinkFit(0.0, 1e6, 0.0, 9), LinkFit(0.0, 1e11, 0.0, 9)
KNOWN = {"int4": Rates(ratio=2.5, encode_bytes_per_s=1e9, decode_bytes_per_s=1e9)}


def coder(codecs, *tiers, **options):
    names = dict.fromkeys(name for tier in tiers for name in tier.names)
    return Coder({name: codecs[name] for name in names}, VirtualClock(), tiers, **options)


def forms(one, raw, *links):
    """The codec of the form that each tier gets."""
    found = {tier: form.codec for form, tiers in one.forms(raw, dict(enumerate(links))) for tier in tiers}
    return [found[tier] for tier in range(len(links))]


def test_each_tier_gets_what_is_sooner_over_its_own_link(in_c):
    both = TierCodecs(("int4",))
    one = coder(in_c, both, both, both, known=KNOWN)
    assert forms(one, stored(), FAST, SLOW, None) == [
        "raw",
        "int4.1",
        "raw",
    ]  # of an unknown link nothing is known to pay
    assert [stats.stored for stats in one.stats()] == [{"raw": 1}, {"int4": 1}, {"raw": 1}]


def test_each_tier_has_codecs_of_its_own(in_c):
    one = coder(in_c, TierCodecs(), TierCodecs(("zstd",), "always"), TierCodecs(("int4", "zstd")), known=KNOWN)
    forms(one, stored(), SLOW, FAST, SLOW)  # what zstd is worth is learnt first
    assert forms(one, stored(), SLOW, FAST, SLOW) == ["raw", "zstd.1", "int4.1"]
    assert forms(one, stored(), FAST, SLOW, None) == ["raw", "zstd.1", "raw"]


def test_a_form_that_several_tiers_take_is_encoded_once(in_c):
    always = TierCodecs(("zstd",), "always")
    one = coder(in_c, always, TierCodecs(), always)
    (first, takers), (second, other) = one.forms(stored(), {0: SLOW, 1: SLOW, 2: FAST})
    assert ((first.codec, takers), (second.codec, other)) == (("zstd.1", [0, 2]), ("raw", [1]))
    fast, _, slow = one.stats()
    assert fast.raw_bytes == slow.raw_bytes == {"zstd": len(stored().payload)}
    (same, _), *_ = one.forms(stored(), {0: SLOW}, have=first)
    assert same is first


def test_metrics_show_above_which_bandwidth_raw_is_sooner(in_c):
    (stats,) = coder(in_c, TierCodecs(("int4",)), known=KNOWN).stats()
    assert stats.break_even_bytes_per_s == {"int4": pytest.approx(0.6 / 2e-9)}


def test_drafts_planes_are_never_rounded(in_c):
    features = msgspec.structs.replace(stored(), part=msgspec.structs.replace(stored().part, plane="features"))
    assert forms(coder(in_c, TierCodecs(("int4",), "always")), features, SLOW) == ["raw"]
    assert forms(coder(in_c, TierCodecs(("int4", "zstd"), "always")), features, SLOW) == ["zstd.1"]


def test_objects_of_other_codecs_are_read_only_where_told(in_c):
    ((written, _),) = coder(in_c, TierCodecs(("zstd",), "always")).forms(stored(), {0: SLOW})
    with pytest.raises(Refused):
        coder(in_c, TierCodecs()).decode(written, 0)
    reader = coder(in_c, TierCodecs(), also_read=[in_c["zstd"]])
    assert bytes(reader.decode(written, 0).payload) == stored().payload
    assert reader.stats()[0].decode_s == {"zstd": 0.0}  # no time passes here
    assert reader.name_of(written.codec) == "zstd"
    assert reader.ids == {"raw", "zstd.1"}
    assert reader.numerics("n") == "n"
    assert not reader.lossy


def test_a_link_is_told_in_bytes_of_raw_kv_by_what_its_own_tier_holds(in_c):
    one = coder(in_c, TierCodecs(), TierCodecs(("int4",)), known=KNOWN)
    assert one.in_raw_bytes(1, SLOW) == SLOW
    (_, found) = (form for form, _ in one.forms(stored(), {0: SLOW, 1: SLOW}))
    ratio = len(stored().payload) / len(found.payload)
    assert one.in_raw_bytes(0, SLOW).bytes_per_s == pytest.approx(1e6)
    assert one.in_raw_bytes(1, SLOW).bytes_per_s == pytest.approx(1 / (1 / (ratio * 1e6) + 1e-9))
    assert one.in_raw_bytes(1, None) is None
    one.decode(found, 1)
    assert one.in_raw_bytes(1, SLOW).bytes_per_s == pytest.approx(ratio * 1e6)  # decoding took no virtual time
