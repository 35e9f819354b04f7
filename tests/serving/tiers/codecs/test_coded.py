"""Coded objects: the codec is theirs, not the address's; and lossy KV is in a namespace of its own."""

import msgspec
import pytest

from netgain.serving.tiers.codecs.codec import form_of
from netgain.serving.tiers.codecs.coded import decoded, encoded, numerics
from netgain.serving.tiers.object import Part, Reason, Refused, Shape, StoredObject, pack, unpack
from tests.serving.tiers.codecs.kv import form, made

SHAPE = Shape(kv_heads=2, head_dim=8, dtype="bfloat16", token_bytes=64, block_tokens=16)


def stored():
    part = Part(key=bytes(32), first_layer=0, layers=2)
    return StoredObject(part=part, root=bytes(32), shape=SHAPE, tokens=16, codec="raw", payload=made(form()))


def by_id(codecs):
    return {codec.id: codec for codec in codecs.values()}


@pytest.mark.parametrize("name", ["zstd", "fp8", "int8", "int4", "cachegen"])
def test_a_coded_object_has_the_same_address_and_says_its_codec(name, in_c):
    raw = stored()
    coded = encoded(raw, in_c[name])
    assert coded.codec == in_c[name].id
    packed = pack(coded)
    assert len(packed) < len(pack(raw))
    found = unpack(packed, raw.part.address())
    back = decoded(found, by_id(in_c))
    assert (back.codec, back.part, len(back.payload)) == ("raw", raw.part, len(raw.payload))
    assert (bytes(back.payload) == raw.payload) == (name == "zstd")


def test_what_cannot_be_coded_stays_raw(in_c):
    other = msgspec.structs.replace(stored(), shape=msgspec.structs.replace(SHAPE, arrangement="K[token] V[token]"))
    assert encoded(other, in_c["int4"]) is other
    nothing = msgspec.structs.replace(stored(), payload=b"\xff" * 2048)  # NaNs
    assert encoded(nothing, in_c["int8"]).codec == "raw"


def test_an_object_of_an_unknown_codec_or_of_other_tables_is_refused(in_c):
    coded = encoded(stored(), in_c["cachegen"])
    with pytest.raises(Refused) as refused:
        decoded(coded, by_id({"int8": in_c["int8"]}))
    assert refused.value.reason is Reason.UNKNOWN_CODEC


def test_a_payload_that_decodes_to_nothing_is_refused_as_damaged(in_c):
    coded = msgspec.structs.replace(encoded(stored(), in_c["int4"]), payload=b"x")
    with pytest.raises(Refused) as refused:
        decoded(coded, by_id(in_c))
    assert refused.value.reason is Reason.DAMAGED


def test_lossy_kv_never_has_the_namespace_of_the_models_own(in_c):
    """LMCache/LMCache#717: accuracy fell with the cache on, because lossy KV was found under the keys of exact KV."""
    plain = "auto;Q4_1;cpp-avx2-v2"
    assert numerics(plain, by_id({name: in_c[name] for name in ("raw", "zstd")})) == plain
    one, two = (numerics(plain, by_id({name: in_c[name]})) for name in ("int8", "cachegen"))
    assert len({plain, one, two}) == 3
    assert in_c["cachegen"].id in two
    both = {name: in_c[name] for name in ("zstd", "int8", "cachegen")}
    assert numerics(plain, by_id(both)) == numerics(plain, by_id(dict(reversed(both.items()))))


def test_the_form_is_read_from_the_object():
    one = stored()
    assert form_of(one.part, one.shape, one.tokens) == form()
