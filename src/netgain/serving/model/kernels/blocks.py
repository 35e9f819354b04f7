"""GGUF's quantised rows taken apart: what the 32-weight blocks of Q4_0, Q4_1 and Q8_0 hold, by the format's definition."""

from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 32  # weights that share one scale, in all formats
Q4_0_BYTES = 18  # float16 scale, 16 bytes of nibbles less 8 (low: weights 0..15, high: 16..31)
Q4_1_BYTES = 20  # float16 scale, float16 minimum, 16 bytes of nibbles (low: weights 0..15, high: 16..31)
Q8_0_BYTES = 34  # float16 scale, 32 signed bytes


class Groups(NamedTuple):
    """w = scales * quants + minimums: quants int8 [out, groups, 32], scales and minimums float32 [out, groups]."""

    quants: Tensor
    scales: Tensor
    minimums: Tensor | None


def check_blocks(blocks: Tensor, shape: tuple[int, int], block_bytes: int) -> Tensor:
    """The blocks as contiguous uint8 [out, in/32*block_bytes]; ValueError if they do not fit `shape`."""
    rows, columns = shape
    if columns % GROUP:
        raise ValueError(f"a quantised matrix needs a multiple of {GROUP} columns, not {columns}")
    expected = (rows, columns // GROUP * block_bytes)
    if blocks.dtype != torch.uint8 or blocks.numel() != expected[0] * expected[1]:
        raise ValueError(f"quantised rows must be uint8 {list(expected)}, not {blocks.dtype} {list(blocks.shape)}")
    return blocks.reshape(expected).contiguous()


def split_q4_0(blocks: Tensor, shape: tuple[int, int]) -> Groups:
    rows, columns = shape
    raw = check_blocks(blocks, shape, Q4_0_BYTES).view(rows, columns // GROUP, Q4_0_BYTES)
    scales = raw[..., :2].contiguous().view(torch.float16).float()
    nibbles = raw[..., 2:]
    quants = torch.cat([nibbles & 15, nibbles >> 4], dim=-1).to(torch.int8) - 8
    return Groups(quants, scales[..., 0].contiguous(), None)


def split_q4_1(blocks: Tensor, shape: tuple[int, int]) -> Groups:
    rows, columns = shape
    raw = check_blocks(blocks, shape, Q4_1_BYTES).view(rows, columns // GROUP, Q4_1_BYTES)
    halves = raw[..., :4].contiguous().view(torch.float16).float()
    nibbles = raw[..., 4:]
    quants = torch.cat([nibbles & 15, nibbles >> 4], dim=-1).to(torch.int8)
    return Groups(quants, halves[..., 0].contiguous(), halves[..., 1].contiguous())


def split_q8_0(blocks: Tensor, shape: tuple[int, int]) -> Groups:
    rows, columns = shape
    raw = check_blocks(blocks, shape, Q8_0_BYTES).view(rows, columns // GROUP, Q8_0_BYTES)
    scales = raw[..., :2].contiguous().view(torch.float16).float()
    return Groups(raw[..., 2:].contiguous().view(torch.int8), scales[..., 0].contiguous(), None)
