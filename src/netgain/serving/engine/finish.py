"""Where an output ends. The step loop and its replay share these two rules, so that they cannot disagree."""

from collections.abc import Container, Sequence
from typing import Literal


def truncate(
    tokens: Sequence[int], remaining: int, stop_ids: Container[int]
) -> tuple[tuple[int, ...], Literal["stop", "length"] | None]:
    """What is kept of newly committed `tokens` when `remaining` (>= 1) more are allowed, and why the output ends, if it does.

    The first stop token is kept as the last token (the text drops it) and everything behind it is dropped. A stop token
    in the last allowed place is a "stop", not a "length".
    """
    if remaining < 1:
        raise ValueError(f"the output is already complete: {remaining} tokens remain")
    for index, token in enumerate(tokens[:remaining]):
        if token in stop_ids:
            return tuple(tokens[: index + 1]), "stop"
    return tuple(tokens[:remaining]), "length" if len(tokens) >= remaining else None


def drafts_kept(drafts: Sequence[int], kept: Sequence[int]) -> int:
    """How many drafts are part of the output, given what `truncate` kept of the tokens the verifier committed.

    Works for every verifier: the token that follows a rejected draft always differs from it.
    """
    count = 0
    for draft, token in zip(drafts, kept, strict=False):
        if draft != token:
            break
        count += 1
    return count
