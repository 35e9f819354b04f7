"""What every codec promises: sizes, bounds of its error, the same bits everywhere, and no harm from bytes it never wrote."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netgain.errors import UsageError
from netgain.serving.tiers.codecs.codec import Damaged, as_floats, from_floats
from netgain.serving.tiers.codecs.names import LOSSLESS, NAMES
from netgain.serving.tiers.codecs.registry import build, check_name
from tests.serving.tiers.codecs.kv import form, made

LOSSY = [name for name in NAMES if name not in LOSSLESS]
FORMS = st.builds(
    form,
    tokens=st.sampled_from([1, 2, 3, 15, 16, 64, 65, 100]),
    layers=st.integers(1, 2),
    dtype=st.sampled_from(["bfloat16", "float32"]),
)


def error(raw, back, of):
    return np.abs(as_floats(raw, of.dtype) - as_floats(back, of.dtype)).reshape(of.layers, 2, -1)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_encoded_decodes_to_as_many_bytes(name, in_c):
    for tokens in (16, 64):
        raw, of = made(form(tokens)), form(tokens)
        coded = in_c[name].encode(raw, of)
        assert coded is not None
        assert len(in_c[name].decode(coded, of)) == len(raw)
        assert len(coded) < len(raw) or name == "raw"


@settings(max_examples=40, deadline=None)
@given(of=FORMS, seed=st.integers(0, 1000), data=st.data())
def test_compiled_and_numpy_write_and_read_the_same_bits(in_numpy, in_c, of, seed, data):
    name = data.draw(st.sampled_from(LOSSY))
    raw = made(of, seed)
    coded = in_numpy[name].encode(raw, of)
    assert in_c[name].encode(raw, of) == coded
    if coded is not None:
        assert bytes(in_c[name].decode(coded, of)) == bytes(in_numpy[name].decode(coded, of))


@settings(max_examples=25, deadline=None)
@given(of=FORMS, data=st.data())
def test_any_numbers_at_all_are_coded_alike_or_refused_by_both(in_numpy, in_c, of, data):
    name = data.draw(st.sampled_from(LOSSY))
    some = data.draw(st.lists(st.floats(width=32), min_size=1, max_size=40))
    raw = from_floats(np.resize(np.array(some, np.float32), of.raw_bytes // of.item_bytes), of.dtype)
    coded = in_numpy[name].encode(raw, of)
    assert in_c[name].encode(raw, of) == coded
    values = as_floats(raw, of.dtype)
    if not np.all(np.abs(values) <= 1e30):
        assert coded is None
    if coded is not None:
        back = bytes(in_numpy[name].decode(coded, of))
        assert bytes(in_c[name].decode(coded, of)) == back
        assert np.all(np.isfinite(as_floats(back, of.dtype)))


@pytest.mark.parametrize("name", sorted(LOSSLESS))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_lossless_codecs_give_back_every_bit(name, dtype, in_numpy):
    of = form(dtype=dtype)
    noise = np.random.default_rng(0).bytes(of.raw_bytes)
    for raw in (made(of), bytes(of.raw_bytes)):
        assert bytes(in_numpy[name].decode(in_numpy[name].encode(raw, of), of)) == raw
    coded = in_numpy[name].encode(noise, of)
    assert coded is None or bytes(in_numpy[name].decode(coded, of)) == noise


@pytest.mark.parametrize(("name", "levels"), [("int8", 255), ("int4", 15)])
def test_integers_are_off_by_at_most_half_a_step_of_their_group(name, levels, in_c):
    of = form(dtype="float32", tokens=32)
    raw = made(of)
    off = error(raw, in_c[name].decode(in_c[name].encode(raw, of), of), of)
    values = as_floats(raw, of.dtype).reshape(of.layers, 2, -1)
    for plane, row in enumerate((of.tokens, of.head_dim)):
        groups = values[:, plane].reshape(-1, row)
        # the least value is rounded down and the step up, to bfloat16
        reach = groups.max(1) - groups.min(1) + np.abs(groups.min(1)) / 128
        assert np.all(off[:, plane].reshape(-1, row).max(1) <= reach / levels * 0.51)


def test_e4m3_is_off_by_a_sixteenth_or_by_half_the_smallest_step(in_c):
    of = form(dtype="float32")
    raw = made(of)
    off = error(raw, in_c["fp8"].decode(in_c["fp8"].encode(raw, of), of), of)
    values = np.abs(as_floats(raw, of.dtype)).reshape(off.shape)
    scale = values.reshape(of.layers, 2, of.kv_heads, -1).max(-1, keepdims=True) / 448 * 1.01
    least = np.broadcast_to(scale / 1024, (of.layers, 2, of.kv_heads, values.shape[-1] // of.kv_heads)).reshape(
        off.shape
    )
    assert np.all(off <= np.maximum(values / 16 * 1.001, least))


def test_finer_bins_lose_less_and_take_more(in_c):
    raw, of = made(form()), form()
    names = ("cachegen-coarse", "cachegen", "cachegen-fine", "int8")
    coded = [in_c[name].encode(raw, of) for name in names]
    losses = [float(error(raw, in_c[n].decode(c, of), of).mean()) for n, c in zip(names, coded, strict=True)]
    assert losses == sorted(losses, reverse=True)
    assert [len(one) for one in coded] == sorted(len(one) for one in coded)


@pytest.mark.parametrize("name", LOSSY)
def test_numbers_that_are_none_are_kept_raw(name, in_numpy, in_c):
    of = form()
    for bad in (np.nan, np.inf, -np.inf, 2e30):
        values = as_floats(made(of), of.dtype).copy()
        values[77] = bad
        for codecs in (in_numpy, in_c):
            assert codecs[name].encode(from_floats(values, of.dtype), of) is None


@pytest.mark.parametrize("name", LOSSY)
def test_a_block_of_zeros_is_zeros_again(name, in_c):
    """An all-zero token row divided by zero in a CUDA encoder of this kind: NaN in its KV."""
    of = form()
    coded = in_c[name].encode(bytes(of.raw_bytes), of)
    back = as_floats(in_c[name].decode(coded, of), of.dtype)
    assert np.all(np.isfinite(back))
    if not name.startswith("cachegen"):  # 0 is no centre of a bin there
        assert not back.any()


@pytest.mark.parametrize("name", NAMES)
def test_input_of_another_size_is_refused(name, in_numpy):
    with pytest.raises(ValueError, match="the form says"):
        in_numpy[name].encode(bytes(10), form())


@pytest.mark.parametrize("name", LOSSY)
def test_kv_in_int8_with_scales_between_is_not_rounded_again(name, in_numpy):
    other = form().__class__(**{**{f: getattr(form(), f) for f in form().__struct_fields__}, "dtype": "int8"})
    assert "int8" in in_numpy[name].cannot(other)
    assert in_numpy["zstd"].cannot(other) is None


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_payload_is_refused_or_gives_as_many_bytes(in_numpy, in_c, data):
    """Whatever the bytes; both arithmetics agree on them."""
    name = data.draw(st.sampled_from([name for name in NAMES if name != "raw"]))
    of = form(data.draw(st.sampled_from([1, 3, 16])))
    good = in_numpy[name].encode(made(form(16)), form(16))
    kind = data.draw(st.sampled_from(["noise", "cut", "flip", "splice"]))
    if kind == "noise":
        payload = data.draw(st.binary(max_size=600))
    elif kind == "cut":
        payload = good[: data.draw(st.integers(0, len(good)))]
    else:
        changed = bytearray(good)
        for _ in range(data.draw(st.integers(1, 8))):
            at = data.draw(st.integers(0, len(changed) - 1 if kind == "splice" else min(200, len(changed) - 1)))
            changed[at] = data.draw(st.integers(0, 255))
        payload = bytes(changed)
    results = []
    for codecs in (in_numpy, in_c):
        try:
            results.append(bytes(codecs[name].decode(payload, of)))
        except Damaged as why:
            results.append(str(why))
    assert results[0] == results[1]
    assert isinstance(results[0], str) or len(results[0]) == of.raw_bytes


@pytest.mark.parametrize("name", [name for name in NAMES if name != "raw"])
def test_every_cut_is_refused(name, in_c):
    of = form()
    coded = in_c[name].encode(made(of), of)
    for end in [*range(0, 200), *range(200, len(coded), 97), len(coded) - 1]:
        with pytest.raises(Damaged):
            in_c[name].decode(coded[:end], of)
    with pytest.raises(Damaged):
        in_c[name].decode(coded + b"\0", of)


def test_a_payload_may_lie_at_any_address(in_c):
    of = form()
    for name in NAMES:
        coded = in_c[name].encode(made(of), of)
        whole = bytes(in_c[name].decode(coded, of))
        for gap in (1, 3):
            moved = memoryview(bytes(gap) + coded)[gap:]
            assert bytes(in_c[name].decode(moved, of)) == whole
            assert in_c[name].encode(memoryview(bytes(gap) + made(of))[gap:], of) == coded


def test_a_zstd_stream_that_promises_more_than_there_is_takes_no_memory(in_numpy):
    import struct

    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 22))
    payload = struct.pack("<I", len(bomb)) + bomb
    with pytest.raises(Damaged, match="says it has"):
        in_numpy["zstd"].decode(payload + payload, form())


def test_an_unknown_name_is_refused_with_the_nearest(in_numpy):
    with pytest.raises(UsageError, match="did you mean 'cachegen'"):
        check_name("cachegn")
    with pytest.raises(ValueError, match="needs tables"):
        build("cachegen", in_numpy["int8"]._arithmetic)
