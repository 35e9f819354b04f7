"""The codecs' arithmetic compiled for this processor: the same bits as in NumPy, ten to fifty times sooner."""

import ctypes
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from netgain.serving.model.kernels.build import cache_directory, find_compiler, load_library
from netgain.serving.tiers.codecs.arithmetic import Bits, Coding, Entropy, Rounded
from netgain.serving.tiers.codecs.codec import Data, Form
from netgain.serving.tiers.codecs.in_numpy import groups_of, row_bytes
from netgain.serving.tiers.codecs.rans import LANES

_SOURCES = Path(__file__).parent / "csrc"


class _Planes(ctypes.Structure):
    """`Planes` in bins.hpp."""

    _fields_ = (
        *((name, c_int64) for name in ("layers", "heads", "dim", "tokens")),
        *((name, c_void_p) for name in ("by_anchor", "centre", "first", "others")),
    )


class Compiled:
    """Arithmetic, compiled. Raises Unavailable where it cannot be."""

    name = "compiled"

    def __init__(self) -> None:
        self._c = _declare(load_library(find_compiler(), cache_directory(), sources=_SOURCES, name="codecs"))

    def integers(self, raw: Data, form: Form, bits: int) -> tuple[Rounded, Rounded] | None:
        source = _aligned(raw, np.uint8, form.item_bytes)
        out = []
        for plane, row in enumerate((form.tokens, form.head_dim)):
            rows = form.plane_values // row
            parameters = np.empty((form.layers * rows, groups_of(row), 2), "<u2")
            codes = np.empty((form.layers * rows, row_bytes(row, bits)), np.uint8)
            at = source.ctypes.data + plane * form.plane_values * form.item_bytes
            stride = 2 * form.plane_values
            if self._c.ngc_encode_integers(
                at, _kind(form), form.layers, stride, rows, row, bits, parameters.ctypes.data, codes.ctypes.data
            ):
                return None
            out.append(Rounded(parameters, codes))
        return out[0], out[1]

    def from_integers(self, keys: Rounded, values: Rounded, form: Form, bits: int) -> Data:
        out = np.empty(form.raw_bytes, np.uint8)
        for plane, (coded, row) in enumerate(((keys, form.tokens), (values, form.head_dim))):
            at = out.ctypes.data + plane * form.plane_values * form.item_bytes
            parameters = _array(coded.parameters)
            self._c.ngc_decode_integers(
                parameters.ctypes.data,
                coded.codes.ctypes.data,
                _kind(form),
                form.layers,
                2 * form.plane_values,
                form.plane_values // row,
                row,
                bits,
                at,
            )
        return out.data

    def e4m3(self, raw: Data, form: Form) -> Rounded | None:
        source = _aligned(raw, np.uint8, form.item_bytes)
        rows, row = 2 * form.layers * form.kv_heads, form.head_dim * form.tokens
        scales, codes = np.empty(rows, "<u2"), np.empty((rows, row), np.uint8)
        failed = self._c.ngc_encode_e4m3(
            source.ctypes.data, _kind(form), rows, row, scales.ctypes.data, codes.ctypes.data
        )
        return None if failed else Rounded(scales, codes)

    def from_e4m3(self, coded: Rounded, form: Form) -> Data:
        out = np.empty(form.raw_bytes, np.uint8)
        scales = _array(coded.parameters)
        self._c.ngc_decode_e4m3(
            scales.ctypes.data,
            coded.codes.ctypes.data,
            _kind(form),
            2 * form.layers * form.kv_heads,
            form.head_dim * form.tokens,
            out.ctypes.data,
        )
        return out.data

    def entropy(self, raw: Data, form: Form, coding: Coding) -> Entropy | None:
        source = _aligned(raw, np.uint8, form.item_bytes)
        numbers = len(coding.kinds)
        symbols, states = np.empty(numbers, np.uint8), np.empty(LANES, "<u4")
        words, outside = np.empty(numbers, "<u2"), np.empty(numbers * form.item_bytes, np.uint8)
        count = c_int64()
        found = self._c.ngc_encode_entropy(
            source.ctypes.data,
            _kind(form),
            byref(_planes(coding, form)),
            coding.kinds.ctypes.data,
            coding.frequency.ctypes.data,
            coding.start.ctypes.data,
            symbols.ctypes.data,
            states.ctypes.data,
            words.ctypes.data,
            byref(count),
            outside.ctypes.data,
        )
        if found < 0:
            return None
        return Entropy(states, words[numbers - count.value :], outside[: found * form.item_bytes].tobytes())

    def from_entropy(self, coded: Entropy, form: Form, coding: Coding) -> Data | None:
        states = np.array(coded.states)
        words, outside = _array(coded.words), _aligned(coded.outside, np.uint8, form.item_bytes)
        symbols, out = np.empty(len(coding.kinds), np.uint8), np.empty(form.raw_bytes, np.uint8)
        failed = self._c.ngc_decode_entropy(
            states.ctypes.data,
            words.ctypes.data,
            len(words),
            outside.ctypes.data,
            len(outside) // form.item_bytes,
            _kind(form),
            byref(_planes(coding, form)),
            coding.kinds.ctypes.data,
            coding.slots.ctypes.data,
            symbols.ctypes.data,
            out.ctypes.data,
        )
        return None if failed else out.data


def _planes(coding: Coding, form: Form) -> _Planes:
    pointers = (one.ctypes.data for one in (coding.by_anchor, coding.centre, coding.first, coding.others))
    return _Planes(form.layers, form.kv_heads, form.head_dim, form.tokens, *pointers)


def _kind(form: Form) -> int:
    return 1 if form.dtype == "float32" else 0


def _array(bits: Bits) -> Bits:
    """Aligned and without gaps, as what points into a payload need not be."""
    return np.require(bits, requirements=("A", "C"))


def _aligned(data: Data, kind: type[np.uint8], item: int) -> npt.NDArray[np.uint8]:
    array = np.frombuffer(data, kind)
    return array.copy() if array.ctypes.data % item else array


def _declare(library: ctypes.CDLL) -> Any:
    p, n, i = c_void_p, c_int64, c_int32
    planes = POINTER(_Planes)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ngc_encode_integers": (n, [p, i, n, n, n, n, i, p, p]),
        "ngc_decode_integers": (None, [p, p, i, n, n, n, n, i, p]),
        "ngc_encode_e4m3": (n, [p, i, n, n, p, p]),
        "ngc_decode_e4m3": (None, [p, p, i, n, n, p]),
        "ngc_encode_entropy": (n, [p, i, planes, p, p, p, p, p, p, POINTER(c_int64), p]),
        "ngc_decode_entropy": (n, [p, p, n, p, n, i, planes, p, p, p, p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
