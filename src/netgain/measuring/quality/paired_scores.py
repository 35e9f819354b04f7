"""Two servers' scores on the same tasks: whether the second is no worse than a margin, and how many tasks that would take.

For right-or-wrong scores the interval of the difference is Tango's (T. Tango, "Equivalence test and confidence interval for the
difference in proportions for the paired-sample design", Statistics in Medicine 17, 1998), which holds with few or no
differences, too; its error rate is checked by enumeration. For graded scores it is the paired bootstrap's.
"""

import math
from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtri, stdtrit

CONFIDENCE = 0.95
POWER = 0.8
MARGIN = 0.01
RESAMPLES = 4000
FEW_DIFFERENCES = 10  # below it a resampled spread says little of what was not seen

State = Literal["not worse", "worse", "too few"]


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """Mean scores over the tasks that have one in both arms; `left_out` have not. `difference` is candidate - baseline.

    `low` and `high` bound the difference (95 %). `lost` and `won` count tasks that scored lower or higher with the
    candidate; `p` is McNemar's exact two-sided probability of a split at least as uneven if neither were better, None for
    graded scores. "not worse": `low` lies above -margin. "worse": the difference is beyond the margin and `high` below 0.
    "too few": neither is shown; `needed` tasks would show "not worse" four times in five if the candidate were equal.
    """

    items: int
    left_out: int
    baseline: float
    candidate: float
    difference: float
    low: float
    high: float
    lost: int
    won: int
    p: float | None
    method: str
    margin: float
    needed: int

    @property
    def state(self) -> State:
        if self.low > -self.margin:
            return "not worse"
        return "worse" if self.difference < -self.margin and self.high < 0.0 else "too few"


def compare_scores(
    baseline: Mapping[str, float | None],
    candidate: Mapping[str, float | None],
    margin: float = MARGIN,
    seed: int = 0,
) -> Paired | None:
    """Pair scores by task; None as a score is unknown. None when no task has both."""
    names = sorted(baseline.keys() | candidate.keys())
    found = [(baseline.get(name), candidate.get(name)) for name in names]
    both = np.array([(ours, theirs) for ours, theirs in found if ours is not None and theirs is not None])
    if not len(both):
        return None
    changes = both[:, 1] - both[:, 0]
    items, lost, won = len(both), int(np.sum(changes < 0)), int(np.sum(changes > 0))
    right_or_wrong = bool(np.isin(both, (0.0, 1.0)).all())
    if right_or_wrong:
        low, high = tango_interval(items, lost, won)
        needed = max(_needed((lost + won) / items, margin), _least(margin))
    else:
        low, high = _bootstrap_interval(changes, seed)
        needed = max(_needed(float(np.var(changes)), margin), _least(margin) if lost + won < FEW_DIFFERENCES else 0)
    return Paired(
        items=items,
        left_out=len(names) - items,
        baseline=float(both[:, 0].mean()),
        candidate=float(both[:, 1].mean()),
        difference=float(changes.mean()),
        low=low,
        high=high,
        lost=lost,
        won=won,
        p=mcnemar(lost, won) if right_or_wrong else None,
        method="Tango's score interval" if right_or_wrong else "paired bootstrap",
        margin=margin,
        needed=needed,
    )


def mcnemar(lost: int, won: int) -> float:
    """Exact: of `lost + won` differences, each goes either way with one half (Q. McNemar, Psychometrika 12, 1947)."""
    return min(1.0, 2.0 * float(bdtr(min(lost, won), lost + won, 0.5))) if lost + won else 1.0


def tango_interval(items: int, lost: int, won: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Both ends of the difference of proportions, where the score statistic equals the normal quantile."""
    quantile = float(ndtri(0.5 + confidence / 2.0))
    return _where(quantile, items, lost, won), _where(-quantile, items, lost, won)


def tango_score(difference: float, items: int, lost: int, won: int) -> float:
    """How many standard errors the seen difference lies above `difference`, the error taken where that were true."""
    a = 2.0 * items
    b = -lost - won + (2.0 * items - won + lost) * difference
    c = -lost * difference * (1.0 - difference)
    share_lost = (math.sqrt(max(0.0, b * b - 4.0 * a * c)) - b) / (2.0 * a)
    variance = items * (2.0 * share_lost + difference * (1.0 - difference))
    beyond = won - lost - items * difference
    if variance <= 0.0:
        return 0.0 if beyond == 0.0 else math.copysign(math.inf, beyond)
    return beyond / math.sqrt(variance)


def _where(score: float, items: int, lost: int, won: int) -> float:
    """The difference at which the statistic, which falls with it, equals `score`: by bisection."""
    low, high = -1.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if tango_score(middle, items, lost, won) > score:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _bootstrap_interval(changes: NDArray[np.float64], seed: int) -> tuple[float, float]:
    """Student's t times the resampled standard error; and with few differences never narrower than what so many equal tasks
    leave open: a loss of everything at a share of tasks that was just not met."""
    items, centre = len(changes), float(changes.mean())
    if items < 2:
        return -1.0, 1.0
    generator = np.random.default_rng(seed)
    means = np.array([generator.choice(changes, items).mean() for _ in range(RESAMPLES)])
    error = float(means.std()) * math.sqrt(items / (items - 1))
    half = float(stdtrit(items - 1, 0.5 + CONFIDENCE / 2.0)) * error
    low, high = centre - half, centre + half
    if int(np.count_nonzero(changes)) < FEW_DIFFERENCES:
        unseen = 1.0 - ((1.0 - CONFIDENCE) / 2.0) ** (1.0 / items)
        low, high = min(low, centre - unseen), max(high, centre + unseen)
    return max(-1.0, low), min(1.0, high)


def _needed(variance: float, margin: float) -> int:
    """Tasks whose interval lies above -margin with POWER, if single differences have this variance and no tendency."""
    quantiles = float(ndtri(0.5 + CONFIDENCE / 2.0)) + float(ndtri(POWER))
    return math.ceil(quantiles**2 * variance / margin**2)


def _least(margin: float) -> int:
    """Tasks without any difference that put the interval within the margin."""
    return math.floor(float(ndtri(0.5 + CONFIDENCE / 2.0)) ** 2 * (1.0 - margin) / margin) + 1
