"""GGUF's tensor types: what a block of each holds, by the format's definition, and how its numbers are restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorType:
    """How a tensor type stores numbers: `block` of them in `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int


TENSOR_TYPES: Mapping[int, TensorType] = MappingProxyType(
    {
        0: TensorType("F32", 1, 4),
        1: TensorType("F16", 1, 2),
        30: TensorType("BF16", 1, 2),
        8: TensorType("Q8_0", 32, 34),
        2: TensorType("Q4_0", 32, 18),
        3: TensorType("Q4_1", 32, 20),
        6: TensorType("Q5_0", 32, 22),
        7: TensorType("Q5_1", 32, 24),
        12: TensorType("Q4_K", 256, 144),
        13: TensorType("Q5_K", 256, 176),
        14: TensorType("Q6_K", 256, 210),
    }
)

UNSUPPORTED: Mapping[int, str] = MappingProxyType(
    {9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"}
    | {20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
    | {29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"}
)


def dequantise(rows: Array, kind: str) -> Array:
    """Stored rows (uint8 [rows, row_bytes]) of a tensor type -> float32 [rows, columns]."""
    if kind == "F32":
        return rows.view("<f4")
    if kind == "F16":
        return rows.view("<f2").astype(np.float32)
    if kind == "BF16":
        return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
    size = next(entry.block_bytes for entry in TENSOR_TYPES.values() if entry.name == kind)
    values = _BLOCKS[kind](rows.reshape(rows.shape[0], -1, size))
    return values.reshape(rows.shape[0], -1).astype(np.float32, copy=False)


def _half(blocks: Array, at: int) -> Array:
    """The float16 at byte `at` of every block, as float32 [..., 1]."""
    return blocks[..., at : at + 2].copy().view("<f2").astype(np.float32)


def _nibbles(packed: Array) -> Array:
    """Low nibbles, then high ones: [..., n] -> [..., 2n]."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(blocks: Array, at: int) -> Array:
    """4 bytes of one bit per weight, as the value 16 or 0: [..., 32]."""
    return np.unpackbits(blocks[..., at : at + 4], axis=-1, bitorder="little") << np.uint8(4)


def _q8_0(blocks: Array) -> Array:  # scale, 32 int8
    return blocks[..., 2:].view(np.int8) * _half(blocks, 0)


def _q4_0(blocks: Array) -> Array:  # scale, 16 bytes of nibbles around 8
    return _half(blocks, 0) * (_nibbles(blocks[..., 2:]).astype(np.int8) - np.int8(8))


def _q4_1(blocks: Array) -> Array:  # scale, minimum, 16 bytes of nibbles
    return _nibbles(blocks[..., 4:]) * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Array) -> Array:  # scale, 4 bytes of fifth bits, 16 bytes of nibbles; around 16
    quants = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (quants.astype(np.int8) - np.int8(16))


def _q5_1(blocks: Array) -> Array:  # scale, minimum, 4 bytes of fifth bits, 16 bytes of nibbles
    return _half(blocks, 0) * (_nibbles(blocks[..., 8:]) | _fifth_bits(blocks, 4)) + _half(blocks, 2)


def _q4_k(blocks: Array) -> Array:  # scale, scale of minimums, 12 bytes of both per group of 32, 128 bytes of nibbles
    return _grouped_k(blocks, _k_nibbles(blocks[..., 16:]))


def _q5_k(
    blocks: Array,
) -> Array:  # as Q4_K, with 32 bytes of fifth bits (bit g of byte i: weight i of group g) between
    bits = (blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return _grouped_k(blocks, _k_nibbles(blocks[..., 48:]) | (bits << np.uint8(4)))


def _q6_k(blocks: Array) -> Array:  # 128 bytes of low nibbles, 64 of upper bit pairs, 16 int8 scales, scale; around 32
    halves = (*blocks.shape[:2], 2)  # each with 4 times 32 weights
    low = _nibbles(blocks[..., :128].reshape(*halves, 64)).reshape(*halves, 4, 32)
    high = (blocks[..., 128:192].reshape(*halves, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & 3
    quants = (low | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    scales = _half(blocks, 208) * blocks[..., 192:208].view(np.int8)
    return scales[..., None] * quants.reshape(*blocks.shape[:2], 16, 16)


def _k_nibbles(packed: Array) -> Array:
    """128 bytes, 32 for every two groups (low nibbles the first of them) -> [..., 8, 32]."""
    return _nibbles(packed.reshape(*packed.shape[:-1], 4, 32)).reshape(*packed.shape[:-1], 8, 32)


def _grouped_k(blocks: Array, quants: Array) -> Array:
    """8 groups of 32 with a 6-bit scale and a 6-bit minimum each, packed in bytes 4..16: the first four of both in the
    lower six bits of eight bytes, the others in nibbles with their upper two bits in those bytes."""
    first, second, third = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    minimums = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    scale, least = _half(blocks, 0) * scales, _half(blocks, 2) * minimums
    return scale[..., None] * quants - least[..., None]


_BLOCKS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "Q8_0": _q8_0,
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "Q4_K": _q4_k,
        "Q5_K": _q5_k,
        "Q6_K": _q6_k,
    }
)
