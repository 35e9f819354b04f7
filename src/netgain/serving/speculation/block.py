"""Block verification (Sun et al., ICLR 2025, arXiv:2403.10444): drafts are judged together, from the last one down.

The law of the output is the target's, and no rule that sees the same draft, target and draft laws accepts more in expectation.
Judging one token at a time wastes a draft whose likely beginning would have made up for an unlikely token behind it.
"""

from typing import Any

import numpy as np

from netgain.serving.engine.protocols import Draft, Noise, Target
from netgain.serving.speculation.verify import check_rows, residual


class BlockVerifier:
    """The same distribution as without speculation, not the same tokens; in expectation it keeps at least as many drafts
    as the rejection rule, and as many where drafts are certain of themselves (one-hot q) or the target is greedy."""

    needs_laws = True
    token_identical = False

    def verify(self, draft: Draft, target: Target, noise: Noise, position: int) -> tuple[int, ...]:
        """Keeps the longest beginning that is accepted; then one token from its residual, or from the last row."""
        if target.laws is None:
            raise ValueError("block verification needs the target's laws, and this step was executed without them")
        check_rows(draft, len(target.laws))
        tokens, p, q = draft.tokens, target.laws, draft.laws
        count = len(tokens)
        odds = _odds(draft, target.laws)
        if count and odds[count] > 0 and _falls(noise, position + count - 1, odds[count]):
            return (*tokens, noise.draw(position + count, p[count]))
        for kept in range(count - 1, 0, -1):
            left = odds[kept]
            if left <= 0:
                continue
            # what the target has beyond the draft behind this beginning, against what the beginning itself lacks
            beyond = _beyond(left, p[kept], tokens[kept], None if q is None else q[kept])
            if beyond > 0 and (left >= 1 or _falls(noise, position + kept - 1, beyond / (beyond + 1 - left))):
                return (*tokens[:kept], _replace(noise, position + kept, left, p[kept], tokens[kept], q, kept))
        if not count:
            return (noise.draw(position, p[0]),)
        return (_replace(noise, position, odds[0], p[0], tokens[0], q, 0),)


def _odds(draft: Draft, laws: np.ndarray) -> list[Any]:
    """For every length: how much likelier the target is to say this beginning than the draft was, cut at 1 at each token."""
    one: Any = 1
    odds = [one]
    for index, token in enumerate(draft.tokens):
        chance = laws[index][token]
        proposed = one if draft.laws is None else draft.laws[index][token]
        if chance <= 0 or proposed <= 0:
            odds.append(0 * one)
        elif odds[-1] * chance >= proposed:  # before dividing, so that a tiny q cannot overflow
            odds.append(one)
        else:
            odds.append(odds[-1] * chance / proposed)
    return odds


def _beyond(left: Any, p: np.ndarray, token: int, q: np.ndarray | None) -> Any:
    if q is None:
        return left * (p.sum() - p[token])
    return np.maximum(left * p - q, 0).sum()


def _replace(
    noise: Noise, position: int, left: Any, p: np.ndarray, token: int, q: np.ndarray | None, place: int
) -> int:
    return noise.draw(position, residual(token, p, None if q is None else q[place], left))


def _falls(noise: Noise, position: int, chance: Any) -> bool:
    """True with probability `chance`; certain outcomes ask for no noise."""
    return bool(chance >= 1) or noise.accept(position, chance)
