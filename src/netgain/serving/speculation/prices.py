"""What steps of a load cost by how many drafts they verify: read off the measured curve, and corrected by what steps took."""

import math
from collections.abc import Callable
from typing import NamedTuple

from netgain.cost.step_cost import StepCost
from netgain.serving.engine.protocols import Load

CONTEXT_STEP = 256  # tokens; costs are looked up once per so much context
ADAPT = 0.05  # weight of a step's time in the running ratios
TRUST = (1 / 3, 3.0)  # a step further off the curve than this was disturbed by something else
DEARER = (0.8, 1.5)  # bounds of what steps with drafts take beyond the curve, compared with those without


class Prices(NamedTuple):
    """Seconds of a step of one batch size by tokens per request, 1 first; in proportion between whole numbers."""

    batch: int
    seconds: tuple[float, ...]

    def of(self, drafts: int) -> float:
        """With so many drafts in all; infinite beyond what was measured."""
        whole, rest = divmod(drafts, self.batch)
        if whole + (rest > 0) >= len(self.seconds):
            return math.inf
        low = self.seconds[whole]
        return low if not rest else low + rest / self.batch * (self.seconds[whole + 1] - low)


class PriceList:
    """`cost` gives the step-cost curve in use, None while there is none. A cost is never extrapolated."""

    def __init__(self, k: int, cost: Callable[[], StepCost | None]) -> None:
        self._k = k
        self._cost = cost
        self._table: dict[tuple[int, int], Prices | None] = {}
        self._table_of: StepCost | None = None
        # by batch, time of steps without drafts over the curve: a running mean and how many it has seen
        self._plain: dict[int, tuple[float, int]] = {}
        self._last_plain = (1.0, 1)  # of whatever batch
        self._dearer = 1.0

    def of(self, load: Load) -> Prices | None:
        """None where steps of this load were not measured."""
        cost = self._cost()
        if cost is None:
            return None
        if cost is not self._table_of:
            self._table, self._table_of, self._plain = {}, cost, {}
        place = (load.batch, load.context // CONTEXT_STEP)
        if place not in self._table:
            self._table[place] = _measured(cost, load.batch, place[1] * CONTEXT_STEP, self._k)
        return self._table[place]

    @property
    def dearer(self) -> float:
        """What steps with drafts take beyond the curve, in proportion to those without."""
        return min(max(self._dearer, DEARER[0]), DEARER[1])

    def plain_s(self, prices: Prices) -> float:
        """What a step without drafts takes here, as far as steps have shown."""
        return prices.of(0) * self._plain.get(prices.batch, self._last_plain)[0]

    def more_s(self, prices: Prices, drafts: int) -> float:
        """What a step takes longer with so many drafts; nothing where that is not known."""
        more_s = prices.of(drafts) * self.dearer - prices.of(0)
        return more_s if drafts and math.isfinite(more_s) else 0.0

    def took(self, prices: Prices, drafts: int, seconds: float) -> float:
        """A step verified so many drafts. Returns how long it took, within what is believed of a step."""
        expected_s = prices.of(drafts)
        if expected_s == math.inf:
            return seconds
        ratio = min(max(seconds / expected_s, TRUST[0]), TRUST[1])
        plain, seen = self._plain.get(prices.batch, (self._last_plain[0], 1))
        if drafts:
            self._dearer += ADAPT * (ratio / plain - self._dearer)
        else:
            weight = max(ADAPT, 1 / (seen + 1))
            self._last_plain = self._plain[prices.batch] = plain + weight * (ratio - plain), seen + 1
        return ratio * expected_s


def _measured(cost: StepCost, batch: int, context: int, k: int) -> Prices | None:
    seconds = []
    for tokens in range(1, k + 2):
        estimate = cost.verify(batch, tokens, context)
        if {"batch", "tokens"} & set(estimate.outside):
            break
        seconds.append(estimate.seconds)
    return Prices(batch, tuple(seconds)) if len(seconds) > 1 else None
