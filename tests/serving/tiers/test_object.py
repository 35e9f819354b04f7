"""A stored object says what it is, in the same bytes everywhere, and is refused when anything about it is amiss."""

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.tiers.object import (
    HEAD_BYTES,
    SCHEMA,
    Expected,
    Part,
    Reason,
    Refused,
    Shape,
    StoredObject,
    pack,
    unpack,
    unpack_head,
)
from tests.serving.tiers.samples import ROOT, SHAPE, packed, stored

ADDRESS, DATA = packed(7)
EXPECTED = Expected(shape=SHAPE, root=ROOT)


def refusal(data: bytes, address: bytes | None = ADDRESS, expected: Expected | None = EXPECTED) -> Reason:
    with pytest.raises(Refused) as refused:
        unpack(data, address, expected)
    return refused.value.reason


@st.composite
def objects(draw: st.DrawFn) -> StoredObject:
    block_tokens = draw(st.integers(1, 8))
    shape = Shape(
        kv_heads=draw(st.integers(1, 8)),
        head_dim=draw(st.integers(1, 256)),
        dtype=draw(st.text(max_size=12)),
        token_bytes=draw(st.integers(1, 64)),
        block_tokens=block_tokens,
    )
    part = Part(
        key=draw(st.binary(min_size=32, max_size=32)),
        first_layer=draw(st.integers(0, 100)),
        layers=draw(st.integers(1, 4)),
        plane=draw(st.text(max_size=12)),
    )
    tokens = draw(st.integers(1, block_tokens))
    codec = draw(st.sampled_from(["raw", "int4:abc"]))
    size = tokens * shape.token_bytes * part.layers if codec == "raw" else draw(st.integers(0, 200))
    payload = draw(st.binary(min_size=size, max_size=size))
    root = draw(st.binary(min_size=32, max_size=32))
    return StoredObject(part=part, root=root, shape=shape, tokens=tokens, codec=codec, payload=payload)


@given(objects())
def test_what_was_packed_is_what_is_unpacked(one: StoredObject) -> None:
    data = pack(one)
    assert data == pack(one)
    back = unpack(data, one.part.address(), Expected(shape=one.shape, root=one.root, codecs=frozenset({one.codec})))
    assert msgspec.structs.replace(back, payload=bytes(back.payload)) == one
    assert msgspec.structs.replace(unpack_head(data[:HEAD_BYTES]).stored, payload=one.payload) == one
    assert unpack_head(data[:HEAD_BYTES]).bytes == len(data)


@given(objects(), st.data())
def test_no_flipped_bit_is_ever_used(one: StoredObject, data: st.DataObject) -> None:
    good = pack(one)
    bit = data.draw(st.integers(0, 8 * len(good) - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Refused):
        unpack(bytes(bad), one.part.address())


def test_every_single_flipped_bit_of_an_object_is_found() -> None:
    for bit in range(8 * len(DATA)):
        bad = bytearray(DATA)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Refused):
            unpack(bad, ADDRESS)


@pytest.mark.parametrize("length", range(len(DATA)))
def test_no_truncated_object_is_used(length: int) -> None:
    assert refusal(DATA[:length]) is Reason.TORN


@given(st.binary(max_size=300))
def test_foreign_bytes_are_refused_and_nothing_else_is_raised(data: bytes) -> None:
    for bad in (data, b"NGKV" + data, b"NGKV" + SCHEMA.to_bytes(2, "little") + data):
        with pytest.raises(Refused):
            unpack(bad)
        with pytest.raises(Refused):
            unpack_head(bad)


def test_each_fault_has_its_reason() -> None:
    newer = b"NGKV" + (SCHEMA + 1).to_bytes(2, "little") + DATA[6:]
    flipped = DATA[:-1] + bytes([DATA[-1] ^ 1])
    assert refusal(b"") is Reason.TORN
    assert refusal(b"\x89PNG\r\n") is Reason.FOREIGN
    assert refusal(newer) is Reason.NEWER
    assert refusal(flipped) is Reason.DAMAGED
    assert refusal(DATA + b"x") is Reason.DAMAGED
    assert refusal(packed(8)[1]) is Reason.WRONG_KEY
    other_root = Expected(shape=SHAPE, root=bytes(32))
    assert refusal(DATA, expected=other_root) is Reason.WRONG_NAMESPACE
    coded = pack(msgspec.structs.replace(stored(7), codec="int4:tables"))
    assert refusal(coded) is Reason.UNKNOWN_CODEC


@pytest.mark.parametrize("field", Shape.__struct_fields__)
def test_another_layout_is_refused_whichever_field_differs(field: str) -> None:
    """LMCache/LMCache#4463: KV of an engine that packed K and V in another way was used silently."""
    value = getattr(SHAPE, field)
    other = msgspec.structs.replace(SHAPE, **{field: value + "x" if isinstance(value, str) else value + 1})
    assert refusal(DATA, expected=Expected(shape=other)) is Reason.WRONG_LAYOUT


@pytest.mark.parametrize("field", Part.__struct_fields__)
def test_every_field_of_the_part_changes_the_address(field: str) -> None:
    part = stored(7).part
    changed = {"key": bytes(32), "first_layer": 1, "layers": 3, "plane": "draft"}[field]
    assert msgspec.structs.replace(part, **{field: changed}).address() != part.address()


def test_what_cannot_be_kv_is_not_packed() -> None:
    one = stored(7)
    for wrong in (
        {"payload": b"short"},
        {"tokens": 5},
        {"tokens": 0},
        {"root": b"x"},
        {"part": Part(key=b"x", first_layer=0, layers=2)},
        {"codec": "x" * 2000},
    ):
        with pytest.raises(ValueError):
            pack(msgspec.structs.replace(one, **wrong))


def test_the_form_is_the_one_that_was_written_down() -> None:
    assert blake3(pack(stored(7))).hexdigest() == "7fb383569863924a0c57ecb45a1cd20d7f079c962cbc6989933cfd719b154fed"
    assert ADDRESS.hex() == "a6fe428767cf42f96769e406e4544678aba07fdf4a04f085ac9adb74563e9dcf"
