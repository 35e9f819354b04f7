"""The service level that users are promised, as targets that a request meets or not and a run meets or not."""

import itertools
import math
import re
from typing import Literal, Protocol

import msgspec

from netgain.errors import UsageError

Metric = Literal["ttft", "itl", "tpot", "e2e"]
_METRICS: tuple[Metric, ...] = ("ttft", "itl", "tpot", "e2e")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_TARGET = re.compile(r"([a-z0-9]+)(?:\.p(\d+(?:\.\d+)?))?\s*(?:<=|=)\s*(\d+(?:\.\d+)?)\s*(us|ms|s)")


class Timed(Protocol):
    """What a target needs of a request, in seconds. Infinite: it failed. None: the request has no such value."""

    @property
    def ok(self) -> bool: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def tpot_s(self) -> float | None: ...
    @property
    def e2e_s(self) -> float: ...
    def token_gaps(self) -> list[tuple[float, int]]: ...


class Target(msgspec.Struct, frozen=True):
    """`metric` is at most `limit_s` for the share `quantile` of the population (requests; tokens for `itl`)."""

    metric: Metric
    limit_s: float
    quantile: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 < self.quantile < 1.0:
            raise UsageError(
                f"the quantile of {self.metric} is {self.quantile}; it must lie between 0 and 1, as in ttft.p95=500ms"
            )
        if not self.limit_s > 0.0:
            raise UsageError(f"the limit of {self.metric} is {self.limit_s} s; it must be positive, as in ttft=500ms")

    def reached_s(self, request: Timed) -> float | None:
        """The lowest limit that one request meets: ttft, tpot and e2e by their value, itl by the share `quantile` of its own
        tokens.

        A failure meets none (infinite). A success with a single token meets any itl or tpot (0). None: a success that showed
        no token has no TTFT to judge.
        """
        if not request.ok:
            return math.inf
        match self.metric:
            case "ttft":
                return request.ttft_s
            case "tpot":
                return request.tpot_s or 0.0
            case "e2e":
                return request.e2e_s
            case "itl":
                gaps = sorted(request.token_gaps())
                wanted = self.quantile * sum(tokens for _, tokens in gaps) - 1e-9
                good = itertools.accumulate(tokens for _, tokens in gaps)
                return next((gap_s for (gap_s, _), so_far in zip(gaps, good, strict=True) if so_far >= wanted), 0.0)

    def met_by(self, request: Timed) -> bool | None:
        """Whether one request meets it; None: it cannot be judged."""
        reached_s = self.reached_s(request)
        return None if reached_s is None else reached_s <= self.limit_s

    def __str__(self) -> str:
        return f"{self.metric}.p{self.quantile * 100:g}={_duration(self.limit_s)}"


class SLO(msgspec.Struct, frozen=True):
    """Targets that hold together. Goodput counts the requests that meet all of them."""

    targets: tuple[Target, ...]

    def __post_init__(self) -> None:
        if not self.targets:
            raise UsageError("the SLO has no target; write for example ttft=500ms,itl=50ms")

    def met_by(self, request: Timed) -> bool | None:
        """True when the request meets every target, False when it misses one, None when one cannot be judged."""
        answers = [target.met_by(request) for target in self.targets]
        if False in answers:
            return False
        return None if None in answers else True

    @property
    def leaves_free(self) -> str | None:
        """What no target bounds, in words; None: both the wait for the first token and the pace of those after it."""
        bounded = {target.metric for target in self.targets}
        if "e2e" in bounded:
            return None
        if "ttft" not in bounded:
            return "wait for the first token"
        return None if bounded & {"itl", "tpot"} else "pace of the tokens after the first"

    def __str__(self) -> str:
        return ",".join(map(str, self.targets))


def parse_slo(text: str) -> SLO:
    """Read `ttft=500ms,itl=50ms` or with quantiles `ttft.p99=2s,tpot.p90=40ms` (p95 when not said). Raises UsageError."""
    targets: list[Target] = []
    for part in text.split(","):
        found = _TARGET.fullmatch(part.strip())
        if not found:
            raise UsageError(
                f"the SLO target {part.strip()!r} is not understood; write METRIC=TIME or METRIC.pNN=TIME, as in "
                "ttft=500ms,itl.p99=50ms (units us, ms, s)"
            )
        name, percent, number, unit = found.groups()
        metric = next((known for known in _METRICS if known == name), None)
        if metric is None:
            raise UsageError(f"the SLO metric {name!r} is unknown; use one of {', '.join(_METRICS)}")
        if any(target.metric == metric for target in targets):
            raise UsageError(f"the SLO names {metric} twice; give each metric once")
        targets.append(Target(metric, float(number) * _UNITS[unit], float(percent) / 100 if percent else 0.95))
    return SLO(tuple(targets))


def _duration(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1.0 else f"{seconds * 1e3:g}ms"
