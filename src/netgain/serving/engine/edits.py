"""What a request's own parameters do to its logits before temperature and cuts: plain arrays, and how they are applied."""

import msgspec
import numpy as np
import numpy.typing as npt

from netgain.serving.engine.request import SamplingParams

Ids = npt.NDArray[np.int64]


class Edits(msgspec.Struct, frozen=True, kw_only=True):
    """The edits of one segment's choosing rows; what is off is None.

    `ids` [m] are the tokens that bias or penalties concern: `bias` float64 [m] is added to their logits, `seen` bool
    [rows, m] says which of them stand in prompt or output before the row's position, `counts` int32 [rows, m] how often
    in the output. `ends` [e] may not be chosen in the first `ends_banned` rows. `allowed` uint32 [rows, words] has a bit
    per token id, lowest id in the lowest bit; ids beyond its end are forbidden.
    """

    ids: Ids | None = None
    bias: npt.NDArray[np.float64] | None = None
    seen: npt.NDArray[np.bool_] | None = None
    counts: npt.NDArray[np.int32] | None = None
    ends: Ids | None = None
    ends_banned: int = 0
    allowed: npt.NDArray[np.uint32] | None = None

    def last(self, rows: int) -> "Edits":
        """Those of the last of `rows` rows alone."""
        return msgspec.structs.replace(
            self,
            seen=None if self.seen is None else self.seen[-1:],
            counts=None if self.counts is None else self.counts[-1:],
            ends_banned=max(0, self.ends_banned - rows + 1),
            allowed=None if self.allowed is None else self.allowed[-1:],
        )


def apply(edits: Edits, params: SamplingParams, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The edited copy of `logits` [rows, vocab]: bias, then penalties, then what is forbidden becomes -inf.

    Every value depends on its own row and token alone, so no batch, chunk or draft can change its bits.
    """
    edited = np.array(logits, dtype=np.float32)
    if edits.ids is not None:
        picked = edited[:, edits.ids].astype(np.float64)
        if edits.bias is not None:
            picked += edits.bias
        if edits.seen is not None:
            factor = params.repetition_penalty
            picked = np.where(edits.seen, np.where(picked > 0, picked / factor, picked * factor), picked)
        if edits.counts is not None:
            picked -= params.frequency_penalty * edits.counts + params.presence_penalty * (edits.counts > 0)
        edited[:, edits.ids] = picked
    if edits.allowed is not None:
        bits = np.unpackbits(edits.allowed.view(np.uint8), axis=1, count=edited.shape[1], bitorder="little")
        edited[bits == 0] = -np.inf
    if edits.ends is not None:
        edited[: edits.ends_banned, edits.ends] = -np.inf
    return edited


class History:
    """The tokens of one request as its penalties and `min_tokens` see them; grows with what is committed."""

    def __init__(self, params: SamplingParams, prompt: tuple[int, ...], end_ids: frozenset[int]) -> None:
        self._repetition = params.repetition_penalty != 1
        self._counting = bool(params.presence_penalty or params.frequency_penalty)
        self._output_tokens = 0
        self._min_tokens = params.min_tokens
        self._ends = np.array(sorted(end_ids), dtype=np.int64) if params.min_tokens and end_ids else None
        biased = dict(params.logit_bias)
        first = sorted({*biased, *(prompt if self._repetition else ())})
        self._column = {token: column for column, token in enumerate(first)}
        capacity = max(64, 2 * len(first))
        self._ids = np.zeros(capacity, dtype=np.int64)
        self._ids[: len(first)] = first
        self._bias = np.zeros(capacity) if biased else None
        if self._bias is not None:
            self._bias[: len(first)] = [biased.get(token, 0.0) for token in first]
        self._seen = np.zeros(capacity, dtype=np.bool_) if self._repetition else None
        if self._seen is not None:
            self._seen[[self._column[token] for token in set(prompt)]] = True
        self._counts = np.zeros(capacity, dtype=np.int32) if self._counting else None

    def extend(self, tokens: tuple[int, ...]) -> None:
        """`tokens` were committed to the output."""
        self._output_tokens += len(tokens)
        if not (self._repetition or self._counting):
            return
        for token in tokens:
            column = self._column_of(token)
            if self._seen is not None:
                self._seen[column] = True
            if self._counts is not None:
                self._counts[column] += 1

    def banned_rows(self, rows: int) -> int:
        """In how many of the next `rows` positions `min_tokens` still forbids the end."""
        return min(rows, max(0, self._min_tokens - self._output_tokens))

    def edits(self, drafts: tuple[int, ...], allowed: npt.NDArray[np.uint32] | None) -> Edits:
        """For the row behind the committed tokens and, one more each, behind every draft.

        With a grammar's `allowed` the end is the grammar's business, `min_tokens` included.
        """
        rows = 1 + len(drafts)
        moving = self._repetition or self._counting
        columns = [self._column_of(token) for token in drafts] if moving else []
        size = len(self._column)
        seen = None if self._seen is None else np.repeat(self._seen[None, :size], rows, axis=0)
        counts = None if self._counts is None else np.repeat(self._counts[None, :size], rows, axis=0)
        for row, column in enumerate(columns, start=1):
            if seen is not None:
                seen[row:, column] = True
            if counts is not None:
                counts[row:, column] += 1
        banned = 0 if self._ends is None or allowed is not None else self.banned_rows(rows)
        return Edits(
            ids=self._ids[:size].copy() if size else None,
            bias=None if self._bias is None else self._bias[:size].copy(),
            seen=seen,
            counts=counts,
            ends=self._ends if banned else None,
            ends_banned=banned,
            allowed=allowed,
        )

    def _column_of(self, token: int) -> int:
        column = self._column.get(token)
        if column is None:
            column = self._column[token] = len(self._column)
            if column == len(self._ids):
                self._grow()
            self._ids[column] = token
        return column

    def _grow(self) -> None:
        self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
        if self._bias is not None:
            self._bias = np.concatenate((self._bias, np.zeros_like(self._bias)))
        if self._seen is not None:
            self._seen = np.concatenate((self._seen, np.zeros_like(self._seen)))
        if self._counts is not None:
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))


def needs_history(params: SamplingParams) -> bool:
    """Whether anything of `params` edits logits; the plain request keeps no history."""
    return bool(
        params.repetition_penalty != 1
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
        or params.min_tokens
        or params.grammar is not None
    )
