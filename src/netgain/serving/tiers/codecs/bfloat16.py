"""bfloat16, which NumPy has not: its bits from float32, rounded in a chosen direction, and back."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]


def rounded(values: Floats) -> Bits:
    """To nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    return _upper(bits + np.uint32(0x7FFF) + even)


def rounded_down(values: Floats) -> Bits:
    """To the next that is not above."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    below = (bits & np.uint32(0x80000000) != 0) & (bits & np.uint32(0xFFFF) != 0)
    return _upper(bits + (below.astype(np.uint32) << np.uint32(16)))


def rounded_up(values: Floats) -> Bits:
    """Numbers that are not negative, to the next that is not below."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return _upper(bits + np.uint32(0xFFFF))


def widened(bits: Bits) -> Floats:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _upper(bits: npt.NDArray[np.uint32]) -> Bits:
    return (bits >> np.uint32(16)).astype("<u2")
