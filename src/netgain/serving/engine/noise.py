"""The randomness of generation as a pure function of (seed, choice, position, token id).

Nothing is consumed in order, so neither batch neighbours nor drafts, preemption or other candidates can shift a
request's noise: with and without speculation a request meets the same noise at the same position.
"""

import math
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int64]

_MASK = (1 << 64) - 1
# The increment and multipliers of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
_STRIDE = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB

# 52 bits and a half keep every uniform exactly representable and strictly inside (0, 1), so both logarithms are finite.
_SHIFT = 12
_UNIT = 2.0**-52

# Relative, far above the rounding of two logarithms; a wider one would only let more candidates survive.
_SLACK = 1e-9

# A vocabulary is hashed in pieces that stay in the cache and in the allocator: three times as fast as whole passes.
_PIECE = 8192
_STRIDES = np.arange(_PIECE, dtype=np.uint64) * np.uint64(_STRIDE)
_STRIDES.setflags(write=False)


class Lane(IntEnum):
    """Independent streams at one position.

    TOKEN belongs to the ordinary sampler, and to drafts that are drawn with the target's own noise. ACCEPT and DRAW
    belong to rejection sampling: the residual must not know what the draft's noise was (given that a draft was
    rejected, the TOKEN noise is no longer uniform), nor what the acceptance test drew. The bonus uses DRAW too, because
    a draft model may have looked at a token of that position before it decided to stop.
    """

    TOKEN = 0
    ACCEPT = 1
    DRAW = 2


def gumbel(seed: int, choice: int, position: int, token_ids: npt.ArrayLike) -> Floats:
    """Standard Gumbel noise float64, in the shape of `token_ids`: what the ordinary sampler adds to log-probabilities."""
    return _gumbel(_bits(_row(_stream(seed, choice), position, Lane.TOKEN), np.asarray(token_ids)))


def uniform(seed: int, choice: int, position: int, lane: int) -> float:
    """One number strictly between 0 and 1."""
    return _uniform(_row(_stream(seed, choice), position, lane))


def draw(
    seed: int,
    choice: int,
    position: int,
    lane: int,
    scores: npt.NDArray[np.floating],
    temperature: float = 1.0,
    ids: Ids | None = None,
) -> int:
    """The id with the highest score / temperature + noise: id i with probability proportional to exp(score i / temperature).

    `ids` [len(scores)] ascend, so that an exact tie goes to the lowest; None means 0, 1, 2, ... The noise of an id does
    not depend on which others take part. Scores need not be normalised; -inf is never drawn. Raises ValueError when the
    highest score is not finite, or one is NaN.
    """
    return _draw(_row(_stream(seed, choice), position, lane), scores, temperature, ids)


class PositionNoise:
    """The noise of one request and choice, for verifiers (the `Noise` protocol)."""

    def __init__(self, seed: int, choice: int) -> None:
        self._base = _stream(seed, choice)

    def accept(self, position: int, ratio: float) -> bool:
        """True with probability min(1, ratio)."""
        return _uniform(_row(self._base, position, Lane.ACCEPT)) < ratio

    def draw(self, position: int, law: np.ndarray) -> int:
        """A token from unnormalised `law` [vocab]; tokens of probability 0 are never drawn.

        Raises ValueError when `law` has no mass, or holds NaN, infinity or a negative number.
        """
        weights = np.asarray(law, dtype=np.float64)
        total = float(weights.sum())
        if not (0.0 < total < np.inf) or float(weights.min()) < 0.0:
            raise ValueError(
                f"cannot draw a token at position {position}: the law sums to {total} (min {weights.min()})"
            )
        ids = np.flatnonzero(weights)
        return _draw(_row(self._base, position, Lane.DRAW), np.log(weights[ids]), 1.0, ids)


def _draw(row: int, scores: npt.NDArray[np.floating], temperature: float, ids: Ids | None) -> int:
    """Gumbel-max without two logarithms per candidate: the hash orders the noise, so the largest hash of a piece bounds
    what its low scores could still gain, and only candidates that might overtake the favourite are evaluated."""
    favourite = int(scores.argmax())
    highest = float(scores[favourite])
    if not math.isfinite(highest):
        raise ValueError(f"cannot draw a token: the highest of {len(scores)} scores is {highest}")
    handicap = float(_gumbel(_bits(row, np.array([favourite if ids is None else ids[favourite]])))[0])
    best, winner = -math.inf, favourite
    for start in range(0, len(scores), _PIECE):
        part = scores[start : start + _PIECE]
        bits = _range_bits(row, start, len(part)) if ids is None else _bits(row, ids[start : start + _PIECE])
        reach = highest - temperature * (float(_gumbel(bits[[bits.argmax()]])[0]) - handicap)
        contenders = np.flatnonzero(part >= np.float64(reach - _SLACK * (1 + abs(reach))))
        if len(contenders) == 0:
            continue
        race = (part[contenders].astype(np.float64) - highest) / temperature + _gumbel(bits[contenders])
        first = int(race.argmax())
        if race[first] > best:
            best, winner = float(race[first]), start + int(contenders[first])
    return winner if ids is None else int(ids[winner])


def _stream(seed: int, choice: int) -> int:
    """The state from which every position of a choice is reached; seeds of any size and sign stay apart."""
    seed = int(seed)
    magnitude = abs(seed)
    limbs = max(1, -(-magnitude.bit_length() // 64))
    state = _absorb(0, 2 * limbs + (seed < 0))
    for index in range(limbs):
        state = _absorb(state, magnitude >> (64 * index))
    return _absorb(state, int(choice))


def _row(stream: int, position: int, lane: int) -> int:
    return _absorb(_absorb(stream, int(position)), int(lane))


def _absorb(state: int, word: int) -> int:
    return _mix(((state ^ word) + _STRIDE) & _MASK)


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)


def _uniform(row: int) -> float:
    return ((row >> _SHIFT) + 0.5) * _UNIT


def _bits(row: int, ids: npt.NDArray[np.integer]) -> Words:
    """52 random bits per id: element `id` of the SplitMix64 sequence that starts at `row`."""
    words = ids.astype(np.uint64)
    words *= _STRIDE
    words += row
    return _finish(words)


def _range_bits(row: int, start: int, count: int) -> Words:
    """`_bits` of start, start + 1, ... for at most a piece, without multiplying."""
    return _finish(_STRIDES[:count] + ((row + start * _STRIDE) & _MASK))


def _finish(words: Words) -> Words:
    scratch = np.empty_like(words)
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        np.right_shift(words, shift, out=scratch)
        words ^= scratch
        words *= factor
    np.right_shift(words, 31, out=scratch)
    words ^= scratch
    words >>= _SHIFT
    return words


def _gumbel(bits: Words) -> Floats:
    noise = bits.astype(np.float64)
    noise += 0.5
    noise *= _UNIT
    for _ in range(2):
        np.log(noise, out=noise)
        np.negative(noise, out=noise)
    return noise
