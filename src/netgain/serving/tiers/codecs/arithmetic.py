"""The numbers of the codecs, apart from their bytes: implemented twice, in NumPy (what is meant) and compiled (what is used)."""

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from netgain.serving.tiers.codecs.codec import Data, Floats, Form

Bits = npt.NDArray[np.uint16]
Codes = npt.NDArray[np.uint8]


class Rounded(NamedTuple):
    """Of K or of V: `parameters` are bfloat16, least and step of each group."""

    parameters: Bits
    codes: Codes


class Coding(NamedTuple):
    """Tables (tables.py) made ready for one form. `by_anchor` [layers, 2]; `centre`, `first` and `others` (widths of a bin for
    the first token and for the others) [layers, 2, channels]; `kinds` the class of each number, in canonical order;
    `frequency` and `start` [16, 64], `slots` [16, 4096] as in rans.py."""

    by_anchor: Codes
    centre: Floats
    first: Floats
    others: Floats
    kinds: Codes
    frequency: Bits
    start: Bits
    slots: npt.NDArray[np.uint32]


class Entropy(NamedTuple):
    """`outside` are the numbers outside all bins, as they were stored."""

    states: npt.NDArray[np.uint32]
    words: Bits
    outside: bytes


class Arithmetic(Protocol):
    """Both give the same bits. Forms are plain numbers, and sizes were checked before. None for numbers that are no KV: not
    finite, or beyond 1e30. Safe to call from several threads."""

    name: str

    def integers(self, raw: Data, form: Form, bits: int) -> tuple[Rounded, Rounded] | None: ...

    def from_integers(self, keys: Rounded, values: Rounded, form: Form, bits: int) -> Data: ...

    def e4m3(self, raw: Data, form: Form) -> Rounded | None:
        """`parameters`: a scale for each layer, K and V, and head."""
        ...

    def from_e4m3(self, coded: Rounded, form: Form) -> Data: ...

    def entropy(self, raw: Data, form: Form, coding: Coding) -> Entropy | None: ...

    def from_entropy(self, coded: Entropy, form: Form, coding: Coding) -> Data | None:
        """None where words, states and outside numbers do not fit together."""
        ...
