"""Which units of an experiment are resampled, and how: the levels of its noise, and the order in which servers were started.

What is resampled is the highest level that was repeated often enough, whole, with everything below it: starts for a claim
across starts, else the groups of prompts that were measured together; never the single request, since the requests of a
block share their noise (T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013). Lower levels are
not resampled again, which would count their noise twice (S. Ren et al., "Nonparametric bootstrapping for hierarchical
data", Journal of Applied Statistics 37, 2010).
"""

import itertools
import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

FEWEST_UNITS = 6  # below it a symmetric test over units cannot reach one in 40: 2**-5 is one in 32
FEWEST_OF_LAYER = 3
RESAMPLES = 2000

Unit = Literal["start", "group"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Resampling(msgspec.Struct, frozen=True, kw_only=True):
    """How often each unit occurs in each resample, `times` [resamples, units], with the probability of each resample.

    `of` is the unit of every value. `layer` [units] is 0 or 1: a unit is only ever drawn in the place of one of its layer.
    """

    unit: Unit
    of: Ints
    layer: Ints
    times: Floats
    probability: Floats

    @property
    def units(self) -> int:
        return len(self.layer)

    @property
    def layers(self) -> int:
        return len(np.unique(self.layer))

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the standard error."""
        return self.units - self.layers

    def error(self, spread: Floats) -> float:
        """The standard error of a statistic from its value in each resample.

        The bootstrap's variance is short by (n-1)/n for the n units of a layer.
        """
        centre = float(self.probability @ spread)
        smallest = min(np.bincount(self.layer)[np.unique(self.layer)])
        return math.sqrt(float(self.probability @ (spread - centre) ** 2) * smallest / (smallest - 1))

    def medians(self, values: Floats, times: Floats) -> Floats:
        """For each row of `times`, the median of the values repeated as often as their unit occurs; over layers the mean."""
        found: list[Floats] = []
        for layer in np.unique(self.layer):
            own = self.layer[self.of] == layer
            found.append(weighted_medians(values[own], times[:, self.of[own]]))
        result: Floats = np.mean(found, axis=0)
        return result


def resampling(starts: Ints, groups: Ints, seed: int) -> Resampling | None:
    """Choose units, layers and resamples for values with these starts and groups; None with too few units.

    Servers are started from either end in turns (before even starts the baseline first), because the one that was started
    first can stay slower or faster for as long as it lives. Even and odd starts are two layers, like the two sequences of a
    crossover trial: what the order does cancels in the estimate and does not widen the interval.
    """
    if not len(groups):
        return None
    unit: Unit = "start" if len(np.unique(starts)) >= FEWEST_UNITS else "group"
    _, first, of = np.unique(starts if unit == "start" else groups, return_index=True, return_inverse=True)
    layer = starts[first] % 2
    if min(np.sum(layer == 0), np.sum(layer == 1)) < FEWEST_OF_LAYER:
        layer = np.zeros_like(layer)
    if len(layer) < 2:
        return None
    times, probability = _draw(layer, seed)
    return Resampling(unit=unit, of=of.astype(np.int64), layer=layer, times=times, probability=probability)


def _draw(layer: Ints, seed: int) -> tuple[Floats, Floats]:
    """Every resample with its probability where they are few, else RESAMPLES of them at random."""
    places = [np.flatnonzero(layer == one) for one in np.unique(layer)]
    if math.prod(math.comb(2 * len(own) - 1, len(own)) for own in places) > RESAMPLES:
        generator = np.random.default_rng(seed)
        times = np.zeros((RESAMPLES, len(layer)))
        for own in places:
            times[:, own] = generator.multinomial(len(own), [1.0 / len(own)] * len(own), size=RESAMPLES)
        return times, np.full(RESAMPLES, 1.0 / RESAMPLES)
    parts = [_every_resample(len(own)) for own in places]
    rows = np.indices([len(times) for times, _ in parts]).reshape(len(parts), -1)
    times = np.zeros((rows.shape[1], len(layer)))
    probability = np.ones(rows.shape[1])
    for own, (part, chance), row in zip(places, parts, rows, strict=True):
        times[:, own] = part[row]
        probability *= chance[row]
    return times, probability


def _every_resample(count: int) -> tuple[Floats, Floats]:
    """All draws of `count` units with replacement: how often each occurs, and the probability of each draw.

    Stars and bars: every way to put count - 1 bars between count stars is one; the runs of stars are the numbers.
    """
    bars = np.array(list(itertools.combinations(range(2 * count - 1), count - 1)), dtype=np.int64).reshape(
        -1, count - 1
    )
    edges = np.hstack([np.full((len(bars), 1), -1), bars, np.full((len(bars), 1), 2 * count - 1)])
    times = np.diff(edges, axis=1) - 1
    factorial = np.array([math.factorial(n) for n in range(count + 1)], dtype=np.float64)
    return times.astype(np.float64), factorial[count] / factorial[times].prod(axis=1) / float(count) ** count


def weighted_medians(values: Floats, weights: Floats) -> Floats:
    """The median of `values` [n] repeated `weights[i]` [n] times, for each row of integer weights."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    cumulative = np.cumsum(weights[:, order], axis=1)
    half = cumulative[:, -1:] / 2.0
    lower = np.argmax(cumulative >= half, axis=1)
    upper = np.argmax(cumulative > half, axis=1)
    result: Floats = (ordered[lower] + ordered[upper]) / 2.0
    return result


def unit_medians(logs: Floats, units: Ints) -> Floats:
    """One number per unit, in the order of their numbers: the median of its pairs."""
    order = np.lexsort((logs, units))
    _, first, sizes = np.unique(units[order], return_index=True, return_counts=True)
    ordered = logs[order]
    result: Floats = (ordered[first + (sizes - 1) // 2] + ordered[first + sizes // 2]) / 2.0
    return result
