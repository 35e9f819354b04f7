"""A design that grows where noise is large: how many server starts it takes to find the effect that it promises to find.

Asked once, after the fewest starts, and of the standard error alone: how large the effect looks has no part in it, so that a
verdict cannot be reached by measuring until it appears (W. Stein, "A two-sample test for a linear hypothesis whose power is
independent of the variance", 1945). `benchmarks/verdicts.py` holds that error rates and coverage stay what they are.
"""

import math
from collections.abc import Sequence

import msgspec

from netgain.deciding.experiment.analyse import end_to_end
from netgain.deciding.experiment.observation import Observation, pair
from netgain.deciding.experiment.power import detectable_effect
from netgain.deciding.experiment.statistics import CONFIDENCE, Effect, median_effect

TARGET = 0.05  # the true gain that a design should find four times in five


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """`starts` to measure in all, and in words why more than the fewest (None: they are enough)."""

    starts: int
    says: str | None = None


def grow(
    observations: Sequence[Observation], most: int, minimum_effect: float, seed: int = 0, confidence: float = CONFIDENCE
) -> Growth:
    """From what the fewest starts showed, the number of starts, even and at most `most`, that would find TARGET."""
    effect = median_effect(pair(observations, end_to_end), seed, confidence)
    now = len({seen.start for seen in observations})
    found = detectable_effect(effect, minimum_effect, confidence)
    if effect is None or found is None or effect.unit != "start" or found <= TARGET or now >= most:
        return Growth(starts=now)
    wanted = next(
        (n for n in range(now + 2, most + 1, 2) if (_at(effect, n, minimum_effect, confidence) or math.inf) <= TARGET),
        most,
    )
    return Growth(
        starts=wanted,
        says=(
            f"{now} starts would find a true gain of {found:.1%} four times in five; noise is larger than the design expects, so "
            f"{wanted} are wanted, to find {TARGET:.0%}"
        ),
    )


def _at(effect: Effect, starts: int, minimum_effect: float, confidence: float) -> float | None:
    """The detectable effect if the error shrank with the root of the number of starts."""
    assert effect.error is not None
    more = msgspec.structs.replace(
        effect,
        error=effect.error * math.sqrt(effect.units / starts),
        freedom=effect.freedom + starts - effect.units,
        units=starts,
    )
    return detectable_effect(more, minimum_effect, confidence)
