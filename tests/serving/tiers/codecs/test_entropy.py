"""Entropy coding: as few bits as the tables allow, and tables that are what they say."""

import numpy as np
import pytest

from netgain.serving.tiers.codecs import rans, tables
from netgain.serving.tiers.codecs.cachegen import CacheGen
from netgain.serving.tiers.codecs.codec import Damaged, as_floats, from_floats
from netgain.serving.tiers.codecs.in_numpy import InNumpy
from tests.serving.tiers.codecs.kv import form, made

RNG = np.random.default_rng(3)


def some(n):
    """Symbols of two classes, and frequencies made from others of their kind."""
    kinds = RNG.integers(0, 2, n).astype(np.uint8)
    symbols = np.clip(np.rint(RNG.normal(31, np.where(kinds, 2.0, 6.0))), 0, 63).astype(np.uint8)
    counts = np.zeros((tables.CLASSES, rans.SYMBOLS), np.int64)
    np.add.at(counts, (kinds, symbols), 1)
    return symbols, kinds, rans.frequencies(counts)


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 64, 5000])
def test_symbols_come_back(n):
    symbols, kinds, frequency = some(n)
    states, words = rans.encode(symbols, kinds, frequency)
    assert np.array_equal(rans.decode(states, words, kinds, rans.slots(frequency)), symbols)


def test_the_coder_takes_no_more_than_a_range_coder_with_the_same_tables():
    """Within one per cent of constriction's, the states counted."""
    constriction = pytest.importorskip("constriction")
    symbols, kinds, frequency = some(40_000)
    states, words = rans.encode(symbols, kinds, frequency)
    ours = 32 * len(states) + 16 * len(words)
    coder = constriction.stream.queue.RangeEncoder()
    for kind in (0, 1):
        model = constriction.stream.model.Categorical(frequency[kind] / 4096.0, perfect=False)
        coder.encode(symbols[kinds == kind].astype(np.int32), model)
    assert ours <= coder.num_bits() * 1.01 + 32 * rans.LANES


def test_frequencies_add_up_and_none_is_zero():
    counts = np.zeros((3, 64), np.int64)
    counts[0, 5], counts[1] = 10**9, RNG.integers(0, 1000, 64)
    found = rans.frequencies(counts)
    assert np.all(found.sum(1, dtype=np.int64) == 4096)
    assert found.min() >= 1
    with pytest.raises(ValueError, match="add up"):
        rans.slots(np.ones((1, 64), np.uint16))


def samples(alike):
    return [(made(form(), seed, alike), form()) for seed in range(30)]


def test_differences_to_the_first_token_are_told_where_tokens_are_alike_and_only_there():
    apart, alike = (np.frombuffer(tables.make(samples(share), 0.5).by_anchor, np.uint8) for share in (0.0, 0.9))
    assert not apart.any()
    assert alike.all()


def test_anchors_make_alike_tokens_smaller(compiled):
    packed = tables.pack(tables.make(samples(0.9), 0.5))
    anchored = CacheGen("cachegen", packed, compiled)
    of, raw = form(), made(form(), 77, 0.9)
    by_mean = CacheGen("cachegen", tables.pack(tables.make(samples(0.0), 0.5)), compiled)
    assert len(anchored.encode(raw, of)) != len(by_mean.encode(raw, of))
    coded = anchored.encode(raw, of)
    same = CacheGen("cachegen", packed, InNumpy())
    assert same.encode(raw, of) == coded
    assert bytes(same.decode(coded, of)) == bytes(anchored.decode(coded, of))


def test_tables_are_known_by_their_digest_in_the_codecs_id():
    one, other = (tables.pack(tables.make(samples(0.0)[:n], 0.5)) for n in (20, 21))
    again = tables.pack(tables.make(samples(0.0)[:20], 0.5))
    ids = [CacheGen("cachegen", packed, InNumpy()).id for packed in (one, other, again)]
    assert ids[0] == ids[2] != ids[1]
    assert ids[0].endswith(tables.digest(one))
    assert CacheGen("cachegen", one, InNumpy()).table_bytes == len(one)


def test_tables_that_are_none_are_refused():
    packed = tables.pack(tables.make(samples(0.0)[:5], 0.5))
    for damaged in (b"", packed[:-1], packed + b"\0", bytes(len(packed)), packed.replace(b"centre", b"center")):
        with pytest.raises(Damaged):
            tables.unpack(damaged)


def test_layers_of_a_block_stored_apart_decode_as_in_the_whole(packed_tables, compiled):
    codec = CacheGen("cachegen", packed_tables["cachegen"], compiled)
    whole, of = made(form()), form()
    half = len(whole) // 2
    back = bytes(codec.decode(codec.encode(whole, of), of))
    for first in (0, 1):
        part = form(layers=1).__class__(
            **{**{f: getattr(of, f) for f in of.__struct_fields__}, "layers": 1, "first_layer": first}
        )
        raw = whole[first * half : (first + 1) * half]
        assert bytes(codec.decode(codec.encode(raw, part), part)) == back[first * half : (first + 1) * half]
    beyond = part.__class__(**{**{f: getattr(part, f) for f in part.__struct_fields__}, "first_layer": 2})
    assert "2 layers" in codec.cannot(beyond)


@pytest.mark.parametrize("alike", [0.0, 0.9])
def test_an_attention_sink_is_kept_bit_for_bit(compiled, alike):
    """Its V is next to nothing beside a bin, and nearly all attention goes there."""
    of = form()
    values = as_floats(made(of, 5, alike), of.dtype).reshape(of.layers, 2, of.kv_heads, -1).copy()
    v = values[:, 1].reshape(of.layers, of.kv_heads, of.tokens, of.head_dim).copy()
    v[:, :, 3] *= 0.01
    values[:, 1] = v.reshape(values[:, 1].shape)
    raw = from_floats(values.reshape(-1), of.dtype)
    packed = tables.pack(tables.make(samples(alike), 0.5))
    for arithmetic in (compiled, InNumpy()):
        codec = CacheGen("cachegen", packed, arithmetic)
        back = as_floats(codec.decode(codec.encode(raw, of), of), of.dtype).reshape(values.shape)
        own = as_floats(raw, of.dtype).reshape(values.shape)
        for plane, token in ((0, np.s_[..., 3::16]), (1, np.s_[..., 24:32])):
            assert np.array_equal(own[:, plane][token], back[:, plane][token])
        assert not np.array_equal(own, back)
