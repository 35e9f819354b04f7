"""Codecs that keep fewer bits of each number: integers of 8 or 4 bits in KIVI's groups (arXiv 2402.02750), and e4m3."""

import numpy as np

from netgain.serving.tiers.codecs.arithmetic import Arithmetic, Bits, Rounded
from netgain.serving.tiers.codecs.bfloat16 import widened
from netgain.serving.tiers.codecs.codec import LARGEST, Damaged, Data, Form, check_raw
from netgain.serving.tiers.codecs.in_numpy import groups_of, row_bytes


class Integers:
    """K in groups of up to 64 along the tokens of a channel, V along the channels of a token; both are rows of the canonical
    form. Payload: least and step (bfloat16) of the groups of K, then of V; codes of K, then of V."""

    lossy = True
    table_bytes = 0

    def __init__(self, bits: int, arithmetic: Arithmetic) -> None:
        self._bits, self._arithmetic = bits, arithmetic
        self.name = f"int{bits}"
        self.id = f"int{bits}.1"

    def cannot(self, form: Form) -> str | None:
        return form.no_numbers

    def encode(self, raw: Data, form: Form) -> bytes | None:
        check_raw(raw, form)
        found = self._arithmetic.integers(raw, form, self._bits)
        if found is None:
            return None
        coded = b"".join(part.tobytes() for part in (found[0][0], found[1][0], found[0][1], found[1][1]))
        return coded if len(coded) < len(raw) else None

    def decode(self, payload: Data, form: Form) -> Data:
        sizes = [_sizes(form, row, self._bits) for row in (form.tokens, form.head_dim)]
        ends = np.cumsum([0, sizes[0][0], sizes[1][0], sizes[0][1], sizes[1][1]]).tolist()
        if len(payload) != ends[-1]:
            raise Damaged(f"{len(payload):,} bytes, the form says {ends[-1]:,}")
        planes = []
        for plane in range(2):
            parameters = np.frombuffer(payload, "<u2", sizes[plane][0] // 2, ends[plane])
            _check(parameters)
            planes.append(Rounded(parameters, np.frombuffer(payload, np.uint8, sizes[plane][1], ends[plane + 2])))
        return self._arithmetic.from_integers(planes[0], planes[1], form, self._bits)


class E4M3:
    """8 bits, of which 4 are an exponent. A scale (bfloat16) for the block's K of each head, and one for its V."""

    name = "fp8"
    id = "fp8-e4m3.1"
    lossy = True
    table_bytes = 0

    def __init__(self, arithmetic: Arithmetic) -> None:
        self._arithmetic = arithmetic

    def cannot(self, form: Form) -> str | None:
        return form.no_numbers

    def encode(self, raw: Data, form: Form) -> bytes | None:
        check_raw(raw, form)
        found = self._arithmetic.e4m3(raw, form)
        if found is None:
            return None
        coded = found.parameters.tobytes() + found.codes.tobytes()
        return coded if len(coded) < len(raw) else None

    def decode(self, payload: Data, form: Form) -> Data:
        rows, row = 2 * form.layers * form.kv_heads, form.head_dim * form.tokens
        if len(payload) != rows * (2 + row):
            raise Damaged(f"{len(payload):,} bytes, the form says {rows * (2 + row):,}")
        scales = np.frombuffer(payload, "<u2", rows)
        _check(scales)
        return self._arithmetic.from_e4m3(Rounded(scales, np.frombuffer(payload, np.uint8, -1, 2 * rows)), form)


def _sizes(form: Form, row: int, bits: int) -> tuple[int, int]:
    """Bytes of parameters and of codes, of K or of V."""
    rows = form.layers * form.plane_values // row
    return 4 * rows * groups_of(row), rows * row_bytes(row, bits)


def _check(bits: Bits) -> None:
    """Raises Damaged unless all are finite and of moderate size."""
    if not np.all(np.abs(widened(bits)) <= 2 * LARGEST):
        raise Damaged("a scale is none")
