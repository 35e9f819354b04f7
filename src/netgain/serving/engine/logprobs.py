"""Log-probabilities under the model's own law: of given tokens, and the most likely ones. Each row's values depend on that
row alone, to the last bit."""

import msgspec
import numpy as np
import numpy.typing as npt

from netgain.serving.engine.request import TokenLogprobs

# Rows scored at a time: a vocabulary in float64 is a few hundred kilobytes, and a prompt chunk has hundreds of rows.
_PIECE = 16


class Scores(msgspec.Struct, frozen=True):
    """`logprobs` float64 [rows] of the given tokens; `top_ids` int64 [rows, k] and `top_logprobs` float64 [rows, k] of the
    most likely ones, highest first, ties to the lowest id."""

    logprobs: npt.NDArray[np.float64]
    top_ids: npt.NDArray[np.int64]
    top_logprobs: npt.NDArray[np.float64]

    def entries(self, rows: int | None = None) -> tuple[TokenLogprobs, ...]:
        """One entry per row, of the first `rows`."""
        ids, values = self.top_ids[:rows].tolist(), self.top_logprobs[:rows].tolist()
        return tuple(
            TokenLogprobs(logprob, tuple(zip(row_ids, row_values, strict=True)))
            for logprob, row_ids, row_values in zip(self.logprobs[:rows].tolist(), ids, values, strict=True)
        )


def score(logits: npt.NDArray[np.float32], tokens: npt.ArrayLike, k: int) -> Scores:
    """Score `tokens` [rows] and the `k` most likely (all of a smaller vocabulary) under softmax of `logits` [rows, vocab]."""
    rows, vocab = logits.shape
    k = min(k, vocab)
    wanted = np.asarray(tokens, dtype=np.int64)
    scores = Scores(np.empty(rows), np.empty((rows, k), dtype=np.int64), np.empty((rows, k)))
    for start in range(0, rows, _PIECE):
        piece = slice(start, min(start + _PIECE, rows))
        part = logits[piece]
        highest = part.max(axis=1).astype(np.float64)
        shifted = part.astype(np.float64)
        shifted -= highest[:, None]
        np.exp(shifted, out=shifted)
        normaliser = highest + np.log(shifted.sum(axis=1))
        scores.logprobs[piece] = np.take_along_axis(part, wanted[piece, None], axis=1)[:, 0] - normaliser
        if k:
            ids = _top(part, k)
            scores.top_ids[piece] = ids
            scores.top_logprobs[piece] = np.take_along_axis(part, ids, axis=1) - normaliser[:, None]
    return scores


def _top(logits: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.int64]:
    """Ids [rows, k] of the highest values, highest first, ties to the lowest id."""
    rows, vocab = logits.shape
    threshold = np.partition(logits, vocab - k, axis=1)[:, vocab - k, None]
    row, token = np.nonzero(logits >= threshold)  # k per row, and more where the last place is shared
    order = np.lexsort((token, -logits[row, token], row))
    first = np.searchsorted(row, np.arange(rows))  # nonzero walks row by row, and so does the sorted order
    top: npt.NDArray[np.int64] = token[order][first[:, None] + np.arange(k)]
    return top
