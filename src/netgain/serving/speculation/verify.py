"""Deciding which drafts stand, one at a time, so that the output is what the target alone would have said.

Verifiers are written over any numbers that can be compared, subtracted and divided: the tests run this very code on
`fractions.Fraction` and prove the law of the output exactly.
"""

from typing import Any

import numpy as np

from netgain.serving.engine.protocols import Draft, Noise, Target


class CoupledVerifier:
    """Keeps the drafts that the ordinary sampler would have chosen: the output equals the one without speculation, token
    for token, at any temperature and for any proposer."""

    needs_laws = False
    token_identical = True

    def verify(self, draft: Draft, target: Target, noise: Noise, position: int) -> tuple[int, ...]:
        """The target's choices up to the first that contradicts its draft, that one included; or all of them."""
        check_rows(draft, len(target.choices))
        for index, token in enumerate(draft.tokens):
            if target.choices[index] != token:
                return tuple(target.choices[: index + 1])
        return tuple(target.choices)


class RejectionVerifier:
    """Standard rejection sampling (Leviathan et al. 2023, Chen et al. 2023): the same distribution as without
    speculation, not the same tokens. It accepts more than the coupled rule when drafts were sampled from a law q."""

    needs_laws = True
    token_identical = False

    def verify(self, draft: Draft, target: Target, noise: Noise, position: int) -> tuple[int, ...]:
        """Accepts each draft with probability min(1, p/q); then one token from the residual, or from the last row."""
        if target.laws is None:
            raise ValueError("rejection sampling needs the target's laws, and this step was executed without them")
        check_rows(draft, len(target.laws))
        for index, token in enumerate(draft.tokens):
            p = target.laws[index]
            q = None if draft.laws is None else draft.laws[index]
            if not _accepts(token, p, q, noise, position + index):
                replacement = noise.draw(position + index, residual(token, p, q))
                return (*draft.tokens[:index], replacement)
        return (*draft.tokens, noise.draw(position + len(draft.tokens), target.laws[-1]))


def _accepts(token: int, p: np.ndarray, q: np.ndarray | None, noise: Noise, position: int) -> bool:
    chance = p[token]
    proposed = 1 if q is None else q[token]
    if chance <= 0 or proposed <= 0:
        return False
    # Testing before dividing keeps a tiny q from overflowing, and asks for no noise where none is needed.
    return bool(chance >= proposed) or noise.accept(position, chance / proposed)


def residual(token: int, p: np.ndarray, q: np.ndarray | None, share: Any = 1) -> np.ndarray:
    """What `share` of p has beyond q, unnormalised. q None is certain of `token`."""
    if q is None:
        rest = p.copy()
        rest[token] = 0
    else:
        rest = np.maximum(share * p - q, 0)
    # A rejection implies mass here, up to rounding: where p and q agree to the last bit, p itself is the answer.
    return rest if (rest > 0).any() else p


def check_rows(draft: Draft, rows: int) -> None:
    """Raises ValueError unless there is one target row more than drafts, and a law for each draft or for none."""
    drafts = len(draft.tokens)
    if rows != drafts + 1:
        raise ValueError(f"{drafts} drafts need {drafts + 1} target rows, got {rows}")
    if draft.laws is not None and len(draft.laws) != drafts:
        raise ValueError(f"{drafts} drafts come with {len(draft.laws)} draft laws")
