"""The randomness of generation as a pure function of (seed, choice, position, token id).

Nothing is consumed in order, so neither batch neighbours nor drafts, preemption or other candidates can shift a
request's noise: with and without speculation a request meets the same noise at the same position.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
# The increment and multipliers of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
_STRIDE = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB

# 52 bits and a half keep every uniform exactly representable and strictly inside (0, 1), so both logarithms are finite.
_SHIFT = 12
_UNIT = 2.0**-52

# Far above the rounding of two logarithms, far below any gap that matters for how many candidates survive pruning.
_SLACK = 1e-9


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


def draw(seed: int, choice: int, position: int, lane: int, ids: npt.NDArray[np.int64], scores: Floats) -> int:
    """The id with the highest score + noise, that is id i with probability exp(score i) / sum of exp(scores).

    `ids` ascend, so that an exact tie goes to the lowest. `scores` [len(ids)] need not be normalised; -inf is never
    drawn. The noise of an id does not depend on which others take part. Raises ValueError when no score is finite or
    one is NaN or +inf.
    """
    return _draw(_row(_stream(seed, choice), position, lane), ids, scores)


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
        return _draw(_row(self._base, position, Lane.DRAW), ids, np.log(weights[ids]))


def _draw(row: int, ids: npt.NDArray[np.int64], scores: Floats) -> int:
    """Gumbel-max without computing two logarithms per candidate: the hash orders the noise, so its largest value bounds
    what a low score could still gain, and only candidates that can reach the favourite are evaluated."""
    favourite = int(scores.argmax())
    if not np.isfinite(scores[favourite]):
        raise ValueError(f"cannot draw a token: the highest of {len(scores)} scores is {scores[favourite]}")
    bits = _bits(row, ids)
    bound = _gumbel(bits[[favourite, int(bits.argmax())]])
    contenders = np.flatnonzero(scores >= scores[favourite] + (bound[0] - bound[1] - _SLACK))
    best = (scores[contenders] + _gumbel(bits[contenders])).argmax()
    return int(ids[contenders[best]])


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
    words *= np.uint64(_STRIDE)
    words += np.uint64(row)
    scratch = words >> np.uint64(30)
    words ^= scratch
    words *= np.uint64(_FIRST)
    np.right_shift(words, np.uint64(27), out=scratch)
    words ^= scratch
    words *= np.uint64(_SECOND)
    np.right_shift(words, np.uint64(31), out=scratch)
    words ^= scratch
    words >>= np.uint64(_SHIFT)
    return words


def _gumbel(bits: Words) -> Floats:
    noise = bits.view(np.int64).astype(np.float64)
    noise += 0.5
    noise *= _UNIT
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    return noise
