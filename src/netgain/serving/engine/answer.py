"""What a segment's logits say: tokens chosen, laws, log-probabilities. Every executor that has logits answers through here."""

import numpy as np
import numpy.typing as npt

from netgain.errors import NetgainError
from netgain.serving.engine.batch import Segment, SegmentResult
from netgain.serving.engine.edits import apply
from netgain.serving.engine.logprobs import Scores, score
from netgain.serving.engine.request import TokenLogprobs
from netgain.serving.engine.sampling import UnusableLogits, choose_rows, law_rows


def answer(segment: Segment, logits: npt.NDArray[np.float32]) -> SegmentResult:
    """`logits` [len(scored) + rows, vocab]: the rows that score prompt tokens, then those that choose.

    Values that are no numbers make the result an error.
    """
    scored = len(segment.scored)
    position = segment.start + len(segment.tokens) - segment.rows + 1
    try:
        _check(logits[:scored], segment.start + segment.scored_from + 1)
        prompt = _prompt_scores(segment, logits[:scored])
        if not segment.rows:
            return SegmentResult((), prompt_logprobs=prompt)
        raw = logits[scored:]
        values = raw
        if segment.edits is not None:
            _check(raw, position)
            values = apply(segment.edits, segment.sampling, raw)
            _check_choice_left(values, position)
        choices = choose_rows(values, segment.sampling, segment.choice, position)
        laws = law_rows(values, segment.sampling, position) if segment.laws else None
    except NetgainError as failure:
        return SegmentResult((), error=str(failure))
    wanted = segment.sampling.logprobs
    if wanted is None:
        return SegmentResult(choices, laws=laws, prompt_logprobs=prompt)
    if segment.laws:  # the verifier may commit any token, so it is scored once it is known
        return SegmentResult(choices, laws=laws, prompt_logprobs=prompt, logits=np.array(raw))
    return SegmentResult(choices, logprobs=score(raw, choices, wanted), prompt_logprobs=prompt)


def committed_logprobs(k: int, result: SegmentResult, tokens: tuple[int, ...]) -> tuple[TokenLogprobs, ...]:
    """Of the committed tokens, with the `k` most likely; nothing from an executor that has no model."""
    if not tokens:
        return ()
    if result.logits is not None:
        return score(result.logits[: len(tokens)], tokens, k).entries()
    return () if result.logprobs is None else result.logprobs.entries(len(tokens))


def _prompt_scores(segment: Segment, logits: npt.NDArray[np.float32]) -> Scores | None:
    if not segment.scored:
        return None
    return score(logits, segment.scored, segment.sampling.prompt_logprobs or 0)


def _check(logits: npt.NDArray[np.float32], position: int) -> None:
    """Before a mask can hide it: the highest value of every row must be a finite number."""
    for row in np.flatnonzero(~np.isfinite(logits.max(axis=1))) if len(logits) else ():
        raise UnusableLogits(
            f"the model's logits for position {position + row} have {logits[row].max()} as their highest value, so no token "
            "can be chosen; check the weights and the compute dtype"
        )


def _check_choice_left(values: npt.NDArray[np.float32], position: int) -> None:
    for row in np.flatnonzero(values.max(axis=1) == -np.inf):
        raise UnusableLogits(
            f"no token may stand at position {position + row}: grammar, min_tokens and the model forbid every one"
        )
