"""Matrices and their products in plain torch, whose bits do not depend on what shares the batch: see torch_kernels.py."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from netgain.serving.model.kernels.blocks import GROUP, Groups
from netgain.serving.model.kernels.protocol import Activations, check_activations

TILE_ROWS = 16
MOST_FLOATS = 1 << 22  # temporary elements per slice of rows in quantised products
SMALLEST = 2.0**-126  # of the normal float32 numbers


@dataclass(frozen=True)
class DenseWeight:
    """`values` [out, in] padded to multiples of 16; `tile_rows` is the row count of every product with it."""

    shape: tuple[int, int]
    values: Tensor
    tile_rows: int
    activations: Activations

    @property
    def nbytes(self) -> int:
        return self.values.nbytes


@dataclass(frozen=True)
class GroupedWeight:
    """Quants int8 [groups, 32, out], scales and minimums float32 [groups, out]; `tile_rows` as of a dense matrix."""

    shape: tuple[int, int]
    quants: Tensor
    scales: Tensor
    minimums: Tensor | None
    tile_rows: int
    activations: Activations

    @property
    def nbytes(self) -> int:
        return self.quants.nbytes + self.scales.nbytes + (0 if self.minimums is None else self.minimums.nbytes)


def packed_dense(weight: Tensor, activations: Activations) -> DenseWeight:
    """`weight` as it is kept. Raises ValueError for activations that it is not multiplied with."""
    check_activations(activations, weight.dtype)
    rows, columns = weight.shape
    padded = pad(weight, (0, -columns % 16, 0, -rows % 16)).contiguous()
    return DenseWeight((rows, columns), padded, _invariant_tile(padded), activations)


def packed_groups(
    groups: Groups, shape: tuple[int, int], device: torch.device, activations: Activations
) -> GroupedWeight:
    """Raises ValueError for activations that blocks are not multiplied with."""
    check_activations(activations, None)

    def place(tensor: Tensor) -> Tensor:
        return tensor.to(device).contiguous()

    minimums = None if groups.minimums is None else place(groups.minimums.t())
    quants, scales = place(groups.quants.permute(1, 2, 0)), place(groups.scales.t())
    packed = GroupedWeight(shape, quants, scales, minimums, 1, activations)
    return replace(packed, tile_rows=_invariant_tile(_expanded(packed))) if activations == "fp32" else packed


def multiplied(x: Tensor, weight: DenseWeight | GroupedWeight) -> Tensor:
    """x [rows, in] -> [rows, out], with the activations that the weight was packed for."""
    if weight.activations == "int8":
        assert isinstance(weight, GroupedWeight)
        return _grouped_linear(x, weight)
    if weight.activations == "bf16":
        assert isinstance(weight, DenseWeight)
        return _paired_linear(x, weight)
    values = _expanded(weight) if isinstance(weight, GroupedWeight) else weight.values.float()
    return _dense_linear(x, values, weight.shape, weight.tile_rows)


def rows_of(weight: DenseWeight | GroupedWeight, tokens: Tensor) -> Tensor:
    """tokens int64 [rows] -> dequantised float32 rows [rows, in]."""
    if isinstance(weight, DenseWeight):
        return weight.values[tokens, : weight.shape[1]].float().contiguous()
    values = weight.scales[:, tokens].t().unsqueeze(-1) * weight.quants[:, :, tokens].permute(2, 0, 1).float()
    if weight.minimums is not None:
        values = values + weight.minimums[:, tokens].t().unsqueeze(-1)
    return values.reshape(len(tokens), weight.shape[1]).contiguous()


def quantise(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Activations [rows, in] rounded per group of 32: quants (integers held as float32) [groups, rows, 32], scales
    [groups, rows] with x ~ scales * quants, and scales * sum(quants)."""
    groups = x.view(len(x), x.shape[1] // GROUP, GROUP).transpose(0, 1)
    largest = groups.abs().amax(-1)
    inverse = torch.where(largest > 0, 127.0 / largest.clamp_min(1e-30), torch.zeros_like(largest))
    quants = torch.round(groups * inverse.unsqueeze(-1))
    scales = largest / 127.0
    return quants, scales, scales * quants.sum(-1)


def _grouped_linear(x: Tensor, weight: GroupedWeight) -> Tensor:
    """Integer products with exact sums per group, then groups added in order: (dw * dx) * sum + m * (dx * sum of x)."""
    out_features = weight.shape[0]
    groups = len(weight.quants)
    at_once = max(1, MOST_FLOATS // (groups * out_features))
    quants = weight.quants.float()
    parts = []
    for rows in torch.split(x, at_once):
        activations, scales, offsets = quantise(rows)
        # Every partial sum is an integer below 2**24, so any order, and any device's float32 or TF32 units, is exact.
        terms = torch.bmm(activations, quants)
        terms *= scales.unsqueeze(-1) * weight.scales.unsqueeze(1)
        if weight.minimums is not None:
            terms += offsets.unsqueeze(-1) * weight.minimums.unsqueeze(1)
        total = torch.zeros_like(terms[0])
        for group in range(groups):
            total += terms[group]
        parts.append(total)
    return torch.cat(parts) if parts else x.new_empty(0, out_features)


def _paired_linear(x: Tensor, weight: DenseWeight) -> Tensor:
    """Activations rounded to bfloat16, products as VDPBF16PS has them (see Kernels.pack_dense), elementwise in float64: that
    holds every product exactly, and a sum so nearly that its rounding to float32 is the one of the exact sum (S. Figueroa,
    When is double rounding innocuous?, 1995)."""
    columns = weight.values.shape[1]  # even
    inputs = _normal(pad(_normal(x).bfloat16().float(), (0, columns - x.shape[1]))).double()
    values = _normal(weight.values[: weight.shape[0]].float()).double().t().contiguous()
    total = x.new_zeros(len(x), weight.shape[0], dtype=torch.float64)
    for pair in range(0, weight.shape[1], 2):
        for at in (pair + 1, pair):
            total += inputs[:, at, None] * values[at]
            # a sum is too small if it is so once rounded to 24 digits, whatever its exponent
            small = total.abs() < SMALLEST * (1 - 2.0**-25)
            total = torch.where(small, total * 0.0, total.float().double())
    return total.float()


def _normal(x: Tensor) -> Tensor:
    """Float32 without the numbers below the smallest normal one, which become zeros."""
    return torch.where(x.abs() < SMALLEST, torch.copysign(torch.zeros_like(x), x), x)


def _expanded(weight: GroupedWeight) -> Tensor:
    """Its numbers as float32 [out, in], padded as a dense matrix is."""
    values = rows_of(weight, torch.arange(weight.shape[0], device=weight.quants.device))
    return pad(values, (0, -weight.shape[1] % 16, 0, -weight.shape[0] % 16))


def _dense_linear(x: Tensor, values: Tensor, shape: tuple[int, int], tile: int) -> Tensor:
    """Tiles of `tile` rows with `values`, which are padded."""
    rows, (out_features, in_features) = len(x), shape
    padded = pad(x, (0, values.shape[1] - in_features, 0, -rows % tile))
    tiles = [linear(part.contiguous(), values) for part in torch.split(padded, tile)]
    return torch.cat(tiles)[:rows, :out_features].contiguous() if tiles else x.new_empty(0, out_features)


def _invariant_tile(padded: Tensor) -> int:
    """16 if a row's bits do not depend on its place among 16 rows (checked with one row repeated), else 1."""
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(1, padded.shape[1], generator=generator).to(padded.device)
    out = linear(row.repeat(TILE_ROWS, 1), padded.float())
    return TILE_ROWS if bool((out == out[:1]).all()) else 1
