"""What drafting tokens brings: acceptance, tokens committed per step, and the speed-up over plain decoding."""

import math
from collections.abc import Sequence

from netgain.errors import UsageError


def expected_accepted(survival: Sequence[float]) -> float:
    """Expected accepted drafts per step, from the chance that each position is accepted once all before it were.

    E = a1 + a1 a2 + ... ; with equal chances a it is a + a^2 + ... + a^K. Measured chances fall with the position, so
    measured ones are to be preferred (Y. Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
    ICML 2023, for equal chances). Raises UsageError for a chance outside [0, 1].
    """
    total, reached = 0.0, 1.0
    for chance in survival:
        if not 0.0 <= chance <= 1.0:
            raise UsageError(f"an acceptance of {chance} is no probability; give values between 0 and 1")
        reached *= chance
        total += reached
    return total


def committed_per_step(survival: Sequence[float]) -> float:
    """Tokens per step: the accepted drafts and one token of the target itself (the residual's or the bonus token)."""
    return expected_accepted(survival) + 1.0


def speedup(survival: Sequence[float], draft_cost: float, verify_cost: float = 1.0) -> float:
    """Speed-up of decoding: tokens per step over the step's cost in plain decode steps, E / (v + K c).

    `draft_cost` is the cost of drafting one token, `verify_cost` that of verifying all, both in plain decode steps.
    Leviathan et al. 2023, Theorem 3.8, has v = 1.
    """
    if draft_cost < 0.0 or verify_cost <= 0.0:
        raise UsageError(f"costs of {draft_cost} and {verify_cost} decode steps cannot be; the second is above 0")
    return committed_per_step(survival) / (verify_cost + len(survival) * draft_cost)


def best_length(acceptance: float, draft_cost: float, most: int = 64) -> int:
    """The number of drafts with the highest speed-up for equal chances; 0 when no draft pays (acceptance <= cost)."""
    found = [speedup([acceptance] * length, draft_cost) for length in range(most + 1)]
    return max(range(most + 1), key=lambda length: (round(found[length], 12), -length))


def rejection_law(draft: Sequence[float], target: Sequence[float]) -> tuple[list[float], list[float], list[float]]:
    """What rejection sampling does to each token: (drafted and accepted, from the residual, together).

    A token drafted with q is accepted with min(1, p / q); after a rejection the residual max(0, p - q), normalised, is
    sampled. The third equals the target: that is the proof of the method (Leviathan et al. 2023, appendix A.1). Raises
    UsageError unless both are distributions over the same tokens.
    """
    for name, law in (("draft", draft), ("target", target)):
        if abs(math.fsum(law) - 1.0) > 1e-6 or any(chance < 0.0 for chance in law):
            raise UsageError(f"the {name}'s probabilities {list(law)} do not add up to 1")
    if len(draft) != len(target):
        raise UsageError(
            f"the draft has {len(draft)} tokens and the target {len(target)}; give one probability per token"
        )
    accepted = [min(p, q) for p, q in zip(target, draft, strict=True)]
    residual = [max(0.0, p - q) for p, q in zip(target, draft, strict=True)]
    whole, rejected = math.fsum(residual), 1.0 - math.fsum(accepted)
    resampled = [0.0 if whole == 0.0 else rejected * part / whole for part in residual]
    return accepted, resampled, [kept + again for kept, again in zip(accepted, resampled, strict=True)]
