"""Entropy coding with tables known beforehand: range asymmetric numeral systems (Duda, arXiv 1311.2540) in 32 interleaved lanes
that share one stream of 16-bit words, in NumPy. The compiled routine (native.py) reads and writes the same bytes.

Symbol i is of lane i mod 32. A lane's state stays in [2^16, 2^32); it starts at 2^16 where encoding starts, at the last
symbol, so a decoder that ends with other states was given damaged bytes.
"""

import numpy as np
import numpy.typing as npt

LANES = 32
SCALE_BITS = 12
SYMBOLS = 64
START = 1 << 16

Symbols = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint16]
States = npt.NDArray[np.uint32]


def frequencies(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint16]:
    """counts [classes, 64] -> frequencies that add up to 4,096 in each class, none of them 0, by largest remainder."""
    total = 1 << SCALE_BITS
    out = np.empty(counts.shape, "<u2")
    for number, row in enumerate(counts):
        share = row.astype(np.float64) + 0.5
        exact = share / share.sum() * (total - SYMBOLS)
        base = np.floor(exact)
        left = int(total - SYMBOLS - base.sum())
        base[np.argsort(base - exact, kind="stable")[:left]] += 1
        out[number] = base + 1
    return out


def starts(frequency: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Where each symbol's slots begin."""
    return (np.cumsum(frequency, axis=1) - frequency).astype("<u2")


def slots(frequency: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint32]:
    """[classes, 4096]: symbol | frequency << 8 | place within the symbol's slots << 20. Raises ValueError for frequencies that
    are none."""
    if np.any(frequency == 0) or np.any(frequency.sum(1, dtype=np.int64) != 1 << SCALE_BITS):
        raise ValueError("frequencies must be positive and add up to 4,096")
    out = np.empty((len(frequency), 1 << SCALE_BITS), "<u4")
    for number, row in enumerate(frequency.astype(np.int64)):
        symbol = np.repeat(np.arange(SYMBOLS), row)
        place = np.arange(1 << SCALE_BITS) - np.repeat(np.cumsum(row) - row, row)
        out[number] = symbol | row[symbol] << 8 | place << 20
    return out


def encode(symbols: Symbols, classes: Symbols, frequency: npt.NDArray[np.uint16]) -> tuple[States, Words]:
    """symbols, classes [n] -> the states a decoder starts with [32] and the words it reads."""
    start = starts(frequency)
    states = np.full(LANES, START, np.uint64)
    taken: list[Words] = []
    for first in range((len(symbols) - 1) // LANES * LANES, -1, -LANES):
        one, of = symbols[first : first + LANES], classes[first : first + LANES]
        state = states[: len(one)]
        often = frequency[of, one].astype(np.uint64)
        full = state >= often << np.uint64(32 - SCALE_BITS)
        taken.append(state[full].astype("<u2"))
        state = np.where(full, state >> np.uint64(16), state)
        states[: len(one)] = (state // often << np.uint64(SCALE_BITS)) + state % often + start[of, one]
    words = np.concatenate(taken[::-1]) if taken else np.empty(0, "<u2")
    return states.astype("<u4"), words


def decode(states: States, words: Words, classes: Symbols, slot: npt.NDArray[np.uint32]) -> Symbols | None:
    """classes [n] -> symbols [n]; None unless the words end exactly with the last symbol, all states where encoding began."""
    state = states.astype(np.uint64)
    out = np.empty(len(classes), np.uint8)
    read = 0
    for first in range(0, len(classes), LANES):
        of = classes[first : first + LANES]
        now = state[: len(of)]
        entry = slot[of, now & np.uint64((1 << SCALE_BITS) - 1)].astype(np.uint64)
        out[first : first + LANES] = entry & np.uint64(0xFF)
        now = (entry >> np.uint64(8) & np.uint64(0xFFF)) * (now >> np.uint64(SCALE_BITS)) + (entry >> np.uint64(20))
        low = now < START
        count = int(low.sum())
        if count:
            if read + count > len(words):
                return None
            now[low] = now[low] << np.uint64(16) | words[read : read + count]
            read += count
        state[: len(of)] = now
    if read != len(words) or np.any(state != START):
        return None
    return out
