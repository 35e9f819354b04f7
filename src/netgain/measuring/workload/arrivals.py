"""When requests are sent: an open loop on a fixed schedule, or a closed loop that keeps a number of them in flight."""

import math
import random
from bisect import bisect_right
from itertools import pairwise

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


class Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    """Open loop at the times of a recording, `speed` times as fast. `at_s` are seconds after the first, not falling."""

    at_s: tuple[float, ...]
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not (self.speed > 0.0 and math.isfinite(self.speed)):
            raise UsageError(f"the speed of a recording is {self.speed}; it must be a positive number")
        if any(after < before for before, after in pairwise((0.0, *self.at_s))):
            raise UsageError("recorded arrivals must not fall, and count from 0")

    def offsets_s(self, count: int) -> tuple[float, ...]:
        """Seconds after the start at which each of `count` requests is due. Raises UsageError beyond the recording."""
        if count > len(self.at_s):
            raise UsageError(f"{count} requests are to be sent, but the recording has arrivals for {len(self.at_s)}")
        return tuple(at / self.speed for at in self.at_s[:count])


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """Closed loop: `concurrency` requests in flight; each one that ends lets the next begin."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"the concurrency is {self.concurrency}; it must be at least 1")


Arrivals = Poisson | Constant | Recorded | Closed


def parse_arrivals(text: str, seed: int = 0) -> Arrivals:
    """Read `poisson:RATE`, `constant:RATE` (requests per second) or `closed:CONCURRENCY`. Raises UsageError."""
    kind, _, value = text.strip().partition(":")
    try:
        match kind:
            case "poisson":
                return Poisson(float(value), seed)
            case "constant":
                return Constant(float(value))
            case "closed":
                return Closed(int(value))
    except ValueError:
        pass
    raise UsageError(
        f"the arrivals {text!r} are not understood; write poisson:2.5, constant:2.5 (requests/s) or closed:4"
    )


def describe(arrivals: Arrivals) -> str:
    """One short phrase for reports."""
    match arrivals:
        case Poisson(rate, seed):
            return f"open loop, Poisson {rate:g} requests/s, seed {seed}"
        case Constant(rate):
            return f"open loop, constant {rate:g} requests/s"
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
