"""Of an object that is read by groups of layers, no byte is used before it was checked."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.tiers.layered import LayeredObject, group_starts
from netgain.serving.tiers.object import Expected, Reason, Refused, Seal, StoredObject, pack, run_layers
from tests.serving.tiers.samples import ROOT, SHAPE, packed, stored

EXPECTED = Expected(shape=SHAPE, root=ROOT)
LAYER = 4 * SHAPE.token_bytes


def read(
    data: bytes, ends: tuple[int, ...], number: int = 7, layers: int = 30, came: list[bytes] | None = None
) -> list[bytes]:
    """What comes of each group, also in `came`; raises Refused."""
    one = LayeredObject(stored(number, layers).part.address(), LAYER)
    came = [] if came is None else came
    for end in ends:
        _, start, stop = one.wanted(end)
        came.append(bytes(one.take(end, data[start:stop], EXPECTED)))
    assert one.whole() == data
    return came


@given(st.integers(1, 130), st.integers(1, 16))
def test_groups_tile_the_layers_in_whole_runs(layers: int, groups: int) -> None:
    starts = group_starts(layers, groups)
    assert starts[0] == 0
    assert list(starts) == sorted(set(starts))
    assert len(starts) == min(groups, -(-layers // run_layers(layers)))
    assert all(start % run_layers(layers) == 0 and start < layers for start in starts)


@given(st.integers(1, 130), st.integers(1, 16))
def test_groups_put_together_are_the_payload_and_the_whole_is_the_object(layers: int, groups: int) -> None:
    data = packed(7, layers)[1]
    ends = (*group_starts(layers, groups)[1:], layers)
    assert b"".join(read(data, ends, layers=layers)) == stored(7, layers).payload


@given(st.data())
def test_a_flipped_bit_is_found_in_its_group_and_those_before_are_right(data: st.DataObject) -> None:
    layers = data.draw(st.sampled_from([2, 5, 30]))
    good = packed(7, layers)[1]
    bit = data.draw(st.integers(0, 8 * len(good) - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    came: list[bytes] = []
    with pytest.raises(Refused):
        read(bytes(bad), (*group_starts(layers, 4)[1:], layers), layers=layers, came=came)
    assert stored(7, layers).payload.startswith(b"".join(came))
    assert len(came) < 4


@given(st.integers(0, len(packed(7, 30)[1]) - 1))
def test_an_object_that_ends_early_is_torn_where_it_ends(length: int) -> None:
    with pytest.raises(Refused) as refused:
        read(packed(7, 30)[1][:length], (10, 20, 30))
    assert refused.value.reason is Reason.TORN


def refusal(one: StoredObject, number: int = 7) -> Reason:
    with pytest.raises(Refused) as refused:
        read(pack(one), (10, 20, 30), number)
    return refused.value.reason


def test_what_is_not_the_object_asked_for_is_refused_with_its_first_group() -> None:
    good = stored(7, 30)
    assert refusal(good, number=8) is Reason.WRONG_KEY
    assert refusal(msgspec.structs.replace(good, root=bytes(32))) is Reason.WRONG_NAMESPACE
    coded = msgspec.structs.replace(good, codec="int4:tables")
    assert refusal(coded) is Reason.UNKNOWN_CODEC
    part_of_a_block = msgspec.structs.replace(good, tokens=3, payload=bytes(30 * 3 * SHAPE.token_bytes))
    assert refusal(part_of_a_block) is Reason.WRONG_LAYOUT
    seal = Seal(bytes(16), bytes(24))
    assert refusal(msgspec.structs.replace(good, seal=seal, payload=bytes(30 * LAYER + 16))) is Reason.NO_KEY


def test_what_is_coded_is_of_use_only_whole_and_no_fault() -> None:
    coded = msgspec.structs.replace(stored(7, 30), codec="int4:tables")
    one = LayeredObject(coded.part.address(), LAYER)
    assert one.take(10, pack(coded), Expected(shape=SHAPE, codecs=frozenset({"raw", "int4:tables"}))) is None
    assert not one.begun


def test_a_group_is_taken_once() -> None:
    address, data = packed(7, 30)
    one = LayeredObject(address, LAYER)
    one.take(10, data[: one.wanted(10).end], EXPECTED)
    with pytest.raises(ValueError, match="taken already"):
        one.take(10, b"", EXPECTED)


def test_more_objects_come_in_one_exchange_the_fewer_layers_of_each() -> None:
    one = LayeredObject(stored(7, 30).part.address(), LAYER, 30)
    assert [one.in_one(end) for end in (5, 10, 30, 1)] == [6, 3, 1, 30]
    one.take(20, packed(7, 30)[1])
    assert one.in_one(25) == 6
    assert LayeredObject(one.address, LAYER).in_one(5) == 1


def test_what_nobody_is_going_to_ask_for_whole_is_let_go_of() -> None:
    data = memoryview(bytearray(packed(7, 30)[1]))
    one = LayeredObject(stored(7, 30).part.address(), LAYER, 30)
    header = one.take(10, data) is not None and bytes(one.header)
    one.passes()
    one.take(30, data[one.head.payload_at + 10 * LAYER :])
    assert one.whole() is None
    assert bytes(one.header) == header
    base = data.obj
    assert isinstance(base, bytearray)
    data.release()
    base.clear()  # raises BufferError while anybody has a part of it
