"""How small a gain a design can find, and how much more of it would decide a run that decided nothing."""

import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from scipy.special import stdtrit

from netgain.deciding.experiment.observation import Observation
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.experiment.statistics import CONFIDENCE, Effect, t_quantile
from netgain.wording import count

POWER = 0.8
WORTHWHILE = 50  # times the units measured; an estimate beyond it is no plan


class Needed(msgspec.Struct, frozen=True, kw_only=True):
    """What would have decided, if noise and effect stay as they are. `units` in all; `blocks` and `minutes` on top.

    `minutes` are of measuring, without the starts of servers; None where the measured blocks tell no time.
    """

    units: int
    blocks: int
    minutes: float | None


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What measuring took so far: blocks, and seconds per block from its first request to the first of the next."""

    blocks: int
    block_s: float | None


def spent(observations: Sequence[Observation]) -> Spent:
    """Count blocks and time them."""
    began: dict[int, float] = {}
    ended = -math.inf
    for seen in observations:
        began[seen.block] = min(began.get(seen.block, math.inf), seen.record.scheduled_s)
        ended = max(ended, seen.record.finished_s)
    times = [*sorted(began.values()), ended]
    lengths = sorted(later - earlier for earlier, later in itertools.pairwise(times)) if began else []
    return Spent(blocks=len(began), block_s=lengths[len(lengths) // 2] if lengths else None)


def detectable_effect(primary: Effect | None, minimum_effect: float, confidence: float = CONFIDENCE) -> float | None:
    """The smallest true gain (0.05 = 5 %) that a repeat of this run would adopt four times in five. None without interval.

    The estimate must clear what excludes "no gain" and the minimum effect, and must do so with POWER.
    """
    if primary is None or primary.error is None or primary.units < FEWEST_UNITS:
        return None
    freedom = primary.freedom
    needed = max(t_quantile(confidence, freedom) * primary.error, math.log1p(minimum_effect))
    return math.expm1(needed + t_quantile(2.0 * POWER - 1.0, freedom) * primary.error)


def needed_to_decide(
    primary: Effect | None, minimum_effect: float, cost: Spent, confidence: float = CONFIDENCE
) -> Needed | None:
    """Units at which the interval, shrinking with the root of their number, would exclude "no change" or every effect that
    matters. None when no number would (the effect is as large as the minimum), or too many."""
    if primary is None or primary.error is None or primary.error <= 0.0:
        return None
    margin, seen = math.log1p(minimum_effect), abs(math.log(primary.ratio))
    distance = seen if seen >= margin else margin - seen
    if distance <= 0.0:
        return None
    units = np.arange(max(primary.units + 1, FEWEST_UNITS), WORTHWHILE * primary.units + 1)
    freedom = units - (primary.units - primary.freedom)
    half = stdtrit(freedom, 0.5 + confidence / 2.0) * primary.error * np.sqrt(primary.units / units)
    enough = units[half <= distance]
    if not len(enough):
        return None
    more = math.ceil((int(enough[0]) - primary.units) * cost.blocks / primary.units)
    return Needed(
        units=int(enough[0]), blocks=more, minutes=None if cost.block_s is None else more * cost.block_s / 60.0
    )


def next_steps(
    primary: Effect | None, needed: Needed | None, *, full_form: bool, looping: bool, advice: str | None = None
) -> list[str]:
    """For a run that is valid and decides nothing. `looping`: only looping text stands between it and a decision.

    `advice`: what to do next, where it is not to run `netgain decide` again.
    """
    if looping:
        return ["next: prompts, or a model, whose answers do not repeat themselves (--workload, --model)"]
    told = []
    if primary is not None and needed is not None:
        what = "server starts" if primary.unit == "start" else "groups of prompts"
        took = "" if needed.minutes is None else f", about {max(1, round(needed.minutes))} min"
        told.append(
            f"about {needed.units} {what} would decide it if noise and effect stay as they are; {primary.units} were "
            f"measured ({count(needed.blocks, 'more block')}{took})"
        )
    if advice is not None:
        told.append(f"next: {advice}")
    elif full_form:
        told.append(
            "next: the same command again while nothing else runs, since other work widens the interval "
            "(netgain doctor shows the load)"
        )
    else:
        told.append(
            "next: the same command without --quick, which measures more groups, starts the servers again and lets outputs "
            "end; while nothing else runs (netgain doctor shows the load)"
        )
    return told
