"""When requests are sent: an open loop on a fixed schedule, or a closed loop that keeps a number of them in flight."""

import math
import random
from bisect import bisect_right
from itertools import pairwise
from typing import Literal

import msgspec

from netgain.errors import UsageError


class Poisson(msgspec.Struct, frozen=True, tag="poisson"):
    """Open loop with independent exponential gaps. The schedule depends on rate and seed alone, so both arms share it."""

    rate_per_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)

    def offsets_s(self, count: int) -> tuple[float, ...]:
        """Seconds after the start at which each of `count` requests is due. A longer schedule begins like a shorter one."""
        source = random.Random(self.seed)
        at, offsets = 0.0, []
        for _ in range(count):
            at += source.expovariate(self.rate_per_s)
            offsets.append(at)
        return tuple(offsets)


class Constant(msgspec.Struct, frozen=True, tag="constant"):
    """Open loop with equal gaps, the first request at once."""

    rate_per_s: float

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)

    def offsets_s(self, count: int) -> tuple[float, ...]:
        """Seconds after the start at which each of `count` requests is due."""
        return tuple(place / self.rate_per_s for place in range(count))


class Bursty(msgspec.Struct, frozen=True, tag="bursty"):
    """Open loop with independent gamma gaps. `cv` is their standard deviation over their mean: 1 is Poisson, above it
    requests come in bursts, below it more evenly."""

    rate_per_s: float
    cv: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_rate(self.rate_per_s)
        if not 0.05 <= self.cv <= 20.0:
            raise UsageError(f"the cv of bursty arrivals is {self.cv}; it must lie in [0.05, 20] (1 is Poisson)")

    def offsets_s(self, count: int) -> tuple[float, ...]:
        """Seconds after the start at which each of `count` requests is due. A longer schedule begins like a shorter one."""
        source = random.Random(self.seed)
        shape = self.cv**-2
        scale = 1.0 / (self.rate_per_s * shape)
        at, offsets = 0.0, []
        for _ in range(count):
            at += source.gammavariate(shape, scale)
            offsets.append(at)
        return tuple(offsets)


class Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    """Open loop at the times of a recording, `speed` times as fast. `at_s` are seconds after the first, not falling.

    A recording that is too short begins again, one mean gap after its last arrival.
    """

    at_s: tuple[float, ...]
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not (self.speed > 0.0 and math.isfinite(self.speed)):
            raise UsageError(f"the speed of a recording is {self.speed}; it must be a positive number")
        if any(after < before for before, after in pairwise((0.0, *self.at_s))):
            raise UsageError("recorded arrivals must not fall, and count from 0")
        if len(self.at_s) < 2 or not self.at_s[-1] > 0.0:
            raise UsageError("recorded arrivals need two requests at different times; use another shape of arrivals")

    def offsets_s(self, count: int) -> tuple[float, ...]:
        """Seconds after the start at which each of `count` requests is due."""
        length, period_s = len(self.at_s), self._period_s
        return tuple((self.at_s[n % length] + n // length * period_s) / self.speed for n in range(count))

    @property
    def rate_per_s(self) -> float:
        """Mean rate at this speed."""
        return self.speed * len(self.at_s) / self._period_s

    @property
    def _period_s(self) -> float:
        return self.at_s[-1] * len(self.at_s) / (len(self.at_s) - 1)


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """Closed loop: `concurrency` requests in flight; each one that ends lets the next begin."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"the concurrency is {self.concurrency}; it must be at least 1")


Arrivals = Poisson | Constant | Bursty | Recorded | Closed
OpenLoop = Poisson | Constant | Bursty | Recorded
Shape = Literal["poisson", "constant", "bursty", "recorded"]
SHAPES: tuple[Shape, ...] = ("poisson", "constant", "bursty", "recorded")


def at_rate(arrivals: OpenLoop, rate_per_s: float, seed: int) -> OpenLoop:
    """The same shape at another mean rate, drawn from another seed where it is drawn. Raises UsageError."""
    _check_rate(rate_per_s)
    match arrivals:
        case Poisson():
            return Poisson(rate_per_s, seed)
        case Constant():
            return Constant(rate_per_s)
        case Bursty(_, cv):
            return Bursty(rate_per_s, cv, seed)
        case Recorded(at_s, speed):
            return Recorded(at_s, speed * rate_per_s / arrivals.rate_per_s)


def describe(arrivals: Arrivals) -> str:
    """One short phrase for reports."""
    match arrivals:
        case Poisson(rate, seed):
            return f"open loop, Poisson {rate:.4g} requests/s, seed {seed}"
        case Constant(rate):
            return f"open loop, constant {rate:.4g} requests/s"
        case Bursty(rate, cv, seed):
            return f"open loop, bursty {rate:.4g} requests/s (cv {cv:g}), seed {seed}"
        case Recorded(at_s, speed):
            return f"open loop, {len(at_s)} recorded arrivals at {speed:g} times their speed"
        case Closed(concurrency):
            return f"closed loop, {concurrency} in flight"


def most_at_once(arrivals: Arrivals, count: int, lasting_s: float) -> int:
    """The most requests that can be open together when none is open longer than `lasting_s`: what a client must afford."""
    if isinstance(arrivals, Closed):
        return min(count, arrivals.concurrency)
    offsets = arrivals.offsets_s(count)
    return max((bisect_right(offsets, at + lasting_s) - place for place, at in enumerate(offsets)), default=0)


def _check_rate(rate: float) -> None:
    if not (rate > 0.0 and math.isfinite(rate)):
        raise UsageError(f"the request rate is {rate}; it must be a positive number of requests per second")
