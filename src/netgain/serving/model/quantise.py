"""Float matrices rounded at load to blocks of 32 numbers: Q8_0 as GGUF's own tool writes it, and Q4_1 with the scale and
minimum that lose least. Every step is one IEEE operation per number or an exact sum, so the same matrix gives the same
bytes on every machine, in pieces of any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from netgain.errors import UsageError

VERSION = 1  # raise whenever a byte of the result changes: it is part of the numerics id
GROUP = 32
_AT_ONCE = 1 << 17  # numbers rounded together: few enough to stay in the processor's cache
# Where a fit begins: how far the range is drawn in at its lower and upper end, as shares of it. More starts than these
# five lose hardly less: root mean square 0.0691 with nine, 0.0694 with five, 0.0730 with one, 0.0791 for plain rounding.
_STARTS = ((0.0, 0.0), (-0.035, 0.0), (0.0, -0.035), (0.035, 0.0), (0.0, 0.035))
_REFINEMENTS = 2
_NOTHING = 1e-30  # so small a range is none: float16 keeps no scale for it, and its inverse may be infinite
_BELOW_HALF = 0.5 - 2.0**-25  # added to 0.5 - 2**-25 it stays below 1 in float32, added to 0.5 it does not
_FINE = (
    1024.0  # steps of a fit's inputs within a step of the 4-bit scale, so that its sums are whole numbers below 2**24
)


Encode = Callable[[Tensor], Tensor]
"""Groups of numbers, float32 [n, 32] -> their blocks, uint8 [n, bytes of a block]"""


def quantised(encode: Encode, shape: tuple[int, int], rows: Callable[[int, int], Tensor]) -> Tensor:
    """The blocks, uint8 [out, bytes of a row], of the matrix whose rows `rows(start, stop)` gives as float32
    [stop - start, in].

    Needs the memory of twice the result and little more. Raises UsageError for a number that is not finite or whose block
    float16 cannot scale.
    """
    count, columns = shape
    if columns % GROUP:
        raise ValueError(f"a quantised matrix needs a multiple of {GROUP} columns, not {columns}")
    step = max(1, _AT_ONCE // columns)
    return torch.cat([_encoded(encode, rows(start, min(start + step, count))) for start in range(0, count, step)])


def _encoded(encode: Encode, rows: Tensor) -> Tensor:
    return encode(rows.reshape(-1, GROUP)).reshape(len(rows), -1)


class _Fit(NamedTuple):
    """units ~ scale * quants + minimum, each [n]; `explained` is how much of the spread of the units that takes away."""

    scale: Tensor
    minimum: Tensor
    explained: Tensor


def q8_0(groups: Tensor) -> Tensor:
    """float32 [n, 32] -> uint8 [n, 34]: float16 scale, then int8."""
    largest = groups.abs().amax(1)
    scales = largest / 127.0
    stored = _half(scales, largest)
    scaled = groups * torch.where(largest > _NOTHING, 1.0 / scales, 0.0).unsqueeze(1)
    # halves away from zero, as the format's own tool rounds; the conversion cuts off what is behind the point
    quants = scaled.add_(scaled.sign().mul_(_BELOW_HALF)).to(torch.int8)
    return torch.cat([stored.unsqueeze(1).view(torch.uint8), quants.view(torch.uint8)], dim=1)


def q4_1(groups: Tensor) -> Tensor:
    """float32 [n, 32] -> uint8 [n, 20]: float16 scale and minimum, then the nibbles of numbers i and i + 16.

    From several starts, scale and minimum are fitted to the rounded numbers by least squares; the best fit is refined by
    rounding and fitting again, and the numbers are rounded to what float16 keeps of it. csrc/quantise.cpp takes the same
    steps; whoever changes one changes both.
    """
    groups = groups.t().contiguous()  # a group down a column, so that sums run along memory
    least, most = groups.amin(0), groups.amax(0)
    span, largest = most - least, torch.maximum(-least, most)
    # in units of a fifteenth of the range, 0..15
    units = (groups - least).mul_(torch.where(span > _NOTHING, 15.0 * _FINE / span, 0.0)).round_().mul_(1.0 / _FINE)
    seen = units.sum(0)
    best = None
    for low, high in _STARTS:
        stretch = 1.0 / (1.0 - low - high)
        fit = _fit(units, seen, _snapped((units * stretch).sub_(15.0 * low * stretch)))
        if best is None:
            best = fit
        else:
            better = fit.explained > best.explained
            best = _Fit(*(torch.where(better, new, old) for new, old in zip(fit, best, strict=True)))
    assert best is not None
    for _ in range(_REFINEMENTS):
        best = _fit(units, seen, _snapped((units - best.minimum).mul_(1.0 / best.scale)))
    unit = span / 15.0
    scales = _half(best.scale * unit, largest)
    minimums = _half(best.minimum * unit + least, largest)
    wide = scales.float()
    quants = _snapped((groups - minimums.float()).mul_(torch.where(wide > 0, 1.0 / wide, 0.0))).to(torch.uint8)
    halves = torch.stack([scales, minimums], dim=1).view(torch.uint8)
    return torch.cat([halves, (quants[:16] + quants[16:] * 16).t()], dim=1)


def _snapped(values: Tensor) -> Tensor:
    """To the nearest of 0..15, in place."""
    return values.round_().clamp_(0.0, 15.0)


def _fit(units: Tensor, seen: Tensor, quants: Tensor) -> _Fit:
    """The line over `quants` nearest to `units` (both [32, n]), whose sum over a group is `seen`."""
    total = quants.sum(0)
    spread = (quants * quants).sum(0).sub_(total * total / GROUP)
    shared = (quants * units).sum(0).sub_(total * seen / GROUP)
    slope = shared / spread  # no number where all quants are equal
    scale = slope.where(slope > 0, torch.ones_like(slope))
    return _Fit(scale, (seen - scale * total) / GROUP, scale * shared)


def _half(values: Tensor, of: Tensor) -> Tensor:
    """`values` as float16; UsageError if one is beyond it or was no number. `of` are the numbers to name."""
    stored = values.half()
    if not bool(stored.isfinite().all()):
        raise UsageError(f"holds {float(of[~stored.isfinite()][0]):g}, which blocks with float16 scales cannot keep")
    return stored
