"""The codecs' arithmetic in NumPy: the meaning of the compiled form, and what is used where there is no compiler."""

import numpy as np
import numpy.typing as npt

from netgain.serving.tiers.codecs import bins, rans
from netgain.serving.tiers.codecs.arithmetic import Bits, Codes, Coding, Entropy, Rounded
from netgain.serving.tiers.codecs.bfloat16 import rounded_down, rounded_up, widened
from netgain.serving.tiers.codecs.codec import LARGEST, Data, Floats, Form, as_floats, from_floats

GROUP = 64
E4M3_MOST = 448.0
_E4M3_STEP = 512.0  # one over the smallest number, 2 ** -9
_LEAST_STEP = np.float32(1e-35)  # below it one over a step is no number; the group is as good as constant


class InNumpy:
    """Arithmetic, in NumPy."""

    name = "numpy"

    def integers(self, raw: Data, form: Form, bits: int) -> tuple[Rounded, Rounded] | None:
        values = _planes(raw, form)
        keys = encode_affine(values[:, 0].reshape(-1, form.tokens), bits)
        rest = None if keys is None else encode_affine(values[:, 1].reshape(-1, form.head_dim), bits)
        return None if keys is None or rest is None else (keys, rest)

    def from_integers(self, keys: Rounded, values: Rounded, form: Form, bits: int) -> Data:
        out = np.empty((form.layers, 2, form.plane_values), np.float32)
        for plane, (coded, row) in enumerate(((keys, form.tokens), (values, form.head_dim))):
            out[:, plane] = decode_affine(coded, row, bits).reshape(form.layers, -1)
        return from_floats(out, form.dtype)

    def e4m3(self, raw: Data, form: Form) -> Rounded | None:
        return encode_e4m3(as_floats(raw, form.dtype).reshape(-1, form.head_dim * form.tokens))

    def from_e4m3(self, coded: Rounded, form: Form) -> Data:
        values = E4M3[coded.codes.reshape(-1, form.head_dim * form.tokens)]
        return from_floats(values * widened(coded.parameters)[:, None], form.dtype)

    def entropy(self, raw: Data, form: Form, coding: Coding) -> Entropy | None:
        values = _planes(raw, form)
        if not np.all(np.abs(values) <= LARGEST):
            return None
        symbols, sinks = np.empty(values.shape, np.uint8), bins.sinks_of(values[:, 1], form)
        for layer in range(form.layers):
            for plane in range(2):
                found = bins.symbols_of(
                    bins.by_channel(values[layer, plane], plane, form), *_of_plane(coding, layer, plane), sinks
                )
                symbols[layer, plane] = bins.canonical(found, plane, form)
        flat = symbols.reshape(-1)
        states, words = rans.encode(flat, coding.kinds, coding.frequency)
        stored = np.frombuffer(raw, np.uint8).reshape(-1, form.item_bytes)
        return Entropy(states, words, stored[flat == bins.ESCAPE].tobytes())

    def from_entropy(self, coded: Entropy, form: Form, coding: Coding) -> Data | None:
        flat = rans.decode(coded.states, coded.words, coding.kinds, coding.slots)
        if flat is None or int((flat == bins.ESCAPE).sum()) * form.item_bytes != len(coded.outside):
            return None
        outside = np.zeros(flat.shape, np.float32)
        outside[flat == bins.ESCAPE] = as_floats(coded.outside, form.dtype)
        shape = (form.layers, 2, form.plane_values)
        out, symbols, outside = np.empty(shape, np.float32), flat.reshape(shape), outside.reshape(shape)
        for layer in range(form.layers):
            for plane in range(2):
                symbol, beyond = (bins.by_channel(one[layer, plane], plane, form) for one in (symbols, outside))
                found = bins.values_of(symbol, beyond, *_of_plane(coding, layer, plane))
                out[layer, plane] = bins.canonical(found, plane, form)
        return from_floats(out, form.dtype)


def row_bytes(row: int, bits: int) -> int:
    """Bytes of the codes of a row of numbers: rows begin at whole bytes."""
    return -(-row * bits // 8)


def groups_of(row: int) -> int:
    return -(-row // GROUP)


def encode_affine(values: Floats, bits: int) -> Rounded | None:
    """values [rows, row] -> least and step [rows, groups, 2], codes [rows, row_bytes]."""
    rows, row = values.shape
    most = np.float32((1 << bits) - 1)
    parameters = np.empty((rows, groups_of(row), 2), "<u2")
    codes = np.empty((rows, row), np.uint8)
    for group in range(groups_of(row)):
        part = values[:, group * GROUP : (group + 1) * GROUP]
        low, high = part.min(1) + np.float32(0), part.max(1) + np.float32(0)  # of -0 and 0 always 0
        if not (np.all(low >= -LARGEST) and np.all(high <= LARGEST)):
            return None
        least = rounded_down(low)
        step = rounded_up((high - widened(least)) / most)
        parameters[:, group, 0], parameters[:, group, 1] = least, step
        scaled = (part - widened(least)[:, None]) * _inverse(step)[:, None]
        codes[:, group * GROUP : group * GROUP + part.shape[1]] = np.clip(np.rint(scaled), 0, most)
    return Rounded(parameters, codes if bits == 8 else _packed(codes))


def decode_affine(coded: Rounded, row: int, bits: int) -> Floats:
    """float32 [rows, row]."""
    parameters = coded.parameters.reshape(-1, groups_of(row), 2)
    codes = coded.codes.reshape(len(parameters), -1)
    found = codes if bits == 8 else _unpacked(codes, row)
    least, step = (np.repeat(widened(parameters[:, :, which]), GROUP, axis=1)[:, :row] for which in (0, 1))
    return found.astype(np.float32) * step + least


def encode_e4m3(values: Floats) -> Rounded | None:
    """values [rows, row] -> scales [rows], codes [rows, row]."""
    most = np.abs(values).max(1)
    if not np.all(most <= LARGEST):
        return None
    scales = rounded_up(most / np.float32(E4M3_MOST))
    scaled = values * _inverse(scales)[:, None]
    bits = scaled.view(np.uint32)
    sign = (bits >> np.uint32(24)).astype(np.uint8) & np.uint8(0x80)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    even = (magnitude >> np.uint32(20)) & np.uint32(1)
    normal = ((magnitude + np.uint32(0x7FFFF) + even) >> np.uint32(20)) - np.uint32(120 << 3)
    small = np.rint(np.abs(scaled) * np.float32(_E4M3_STEP)).astype(np.uint32)
    code = np.minimum(np.where(magnitude < np.uint32(121 << 23), small, normal), np.uint32(0x7E)).astype(np.uint8)
    return Rounded(scales, code | sign)


def _e4m3() -> Floats:
    """What each of the 256 codes stands for; the two that stand for no number read as 0."""
    code = np.arange(256)
    exponent, fraction = (code >> 3) & 15, code & 7
    value = np.where(exponent == 0, fraction / _E4M3_STEP, (1 + fraction / 8) * 2.0 ** (exponent - 7))
    value[(code & 0x7F) == 0x7F] = 0.0
    return np.where(code & 0x80, -value, value).astype(np.float32)


E4M3 = _e4m3()


def _planes(raw: Data, form: Form) -> Floats:
    return as_floats(raw, form.dtype).reshape(form.layers, 2, form.plane_values)


def _of_plane(coding: Coding, layer: int, plane: int) -> tuple[Floats, Floats, Floats, bool]:
    at = layer, plane
    return coding.centre[at], coding.first[at], coding.others[at], bool(coding.by_anchor[at])


def _inverse(bits: Bits) -> Floats:
    width = widened(bits)
    return np.divide(np.float32(1), width, out=np.zeros_like(width), where=width >= _LEAST_STEP)


def _packed(codes: Codes) -> Codes:
    """Two codes a byte, the first in the low half."""
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    return codes[:, ::2] | (codes[:, 1::2] << np.uint8(4))


def _unpacked(codes: Codes, row: int) -> npt.NDArray[np.uint8]:
    out = np.empty((codes.shape[0], 2 * codes.shape[1]), np.uint8)
    out[:, ::2], out[:, 1::2] = codes & np.uint8(15), codes >> np.uint8(4)
    return out[:, :row]
