"""What a measurement is asked to do, checked before anything is sent."""

import math
from pathlib import Path

import msgspec

from netgain.errors import UsageError
from netgain.measuring.client.endpoint import base_url
from netgain.measuring.client.options import LONGEST_S, Budget
from netgain.measuring.measurement.cost import Pricing
from netgain.measuring.record.as_workload import load_traffic, recorded_arrivals
from netgain.measuring.workload.arrivals import Bursty, Closed, Constant, OpenLoop, Poisson, Shape
from netgain.measuring.workload.item import Workload
from netgain.measuring.workload.slo import SLO


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of `netgain measure URL`.

    `shape`: None with a closed loop of `concurrency`. `rate_per_s` is None in a saturation search, and with recorded arrivals
    that keep their own rate. `arrivals_from`: the recording whose arrival times are taken, by default the workload.
    `metrics`: None: the server's own /metrics; "none": nothing is scraped; else a URL. `budget_s`: for everything (None: no
    limit). `pricing` None: no cost is asked for. `client`: how much the client may disturb before a window is void.
    """

    url: str
    model: str | None = None
    workload: str = "chat"
    concurrency: int | None = None
    shape: Shape | None = None
    rate_per_s: float | None = None
    cv: float = 2.0
    arrivals_from: str | None = None
    requests: int | None = None
    duration_s: float | None = None
    warm_up_s: float | None = None
    slo: SLO | None = None
    saturate: bool = False
    precision: float = 0.1
    repeats: int = 3
    budget_s: float | None = None
    timeout_s: float = 300.0
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int = 0
    reuse_prefixes: bool = False
    metrics: str | None = None
    headers: dict[str, str] = {}
    with_text: bool = False
    pricing: Pricing | None = None
    client: Budget = Budget()

    def __post_init__(self) -> None:
        if self.saturate:
            if self.slo is None or not {"ttft", "itl"} & {target.metric for target in self.slo.targets}:
                raise UsageError("a saturation search needs an SLO with ttft or itl; write --slo ttft=500ms,itl=50ms")
            if self.concurrency is not None:
                raise UsageError("a saturation search looks for an open-loop rate: leave out --concurrency")
            if not 0.01 <= self.precision <= 1.0:
                raise UsageError(f"the precision is {self.precision}; it must lie in [0.01, 1]")
            if not 1 <= self.repeats <= 15:
                raise UsageError(f"the repeats are {self.repeats}; they must lie in [1, 15]")
        elif self.concurrency is not None and self.shape is not None:
            raise UsageError("--concurrency is a closed loop and --rate or --arrivals an open one: give one of them")
        elif self.shape not in (None, "recorded") and self.rate_per_s is None:
            raise UsageError(
                f"arrivals of shape {self.shape} need a rate: --rate 2 (requests per second), or --saturate"
            )
        for name, value in (
            ("requests", self.requests),
            ("duration", self.duration_s),
            ("budget", self.budget_s),
            ("max_tokens", self.max_tokens),
        ):
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{name} is {value}; it must be positive and finite")
        if self.rate_per_s is not None:
            Constant(self.rate_per_s)  # refuses what is no rate
        if not 0 <= self.seed < 2**32:  # prompts derive seeds of their own from it, which servers read into 64 bits
            raise UsageError(f"the seed is {self.seed}; it must lie in [0, 2^32)")
        if self.temperature is not None and not 0.0 <= self.temperature <= 2.0:
            raise UsageError(f"the temperature is {self.temperature}; it must lie in [0, 2]")
        if not 0.0 < self.timeout_s <= LONGEST_S:
            raise UsageError(f"the timeout is {self.timeout_s} s; it must be positive, and at most {LONGEST_S:g} s")
        if self.metrics not in (None, "none"):
            base_url(self.metrics)  # refuses what is no URL
        if self.warm_up_s is not None and not 0 <= self.warm_up_s < math.inf:
            raise UsageError(f"the warm-up is {self.warm_up_s} s; it must be finite and not negative")


def load_items(ask: Ask) -> Workload:
    """The workload, with outputs capped and sampling overridden as asked. Raises UsageError."""
    workload = load_traffic(ask.workload)
    items = tuple(
        msgspec.structs.replace(
            item,
            max_tokens=item.max_tokens if ask.max_tokens is None else min(item.max_tokens, ask.max_tokens),
            temperature=item.temperature if ask.temperature is None else ask.temperature,
            seed=ask.seed * 100_003 + place if item.seed is None else item.seed,
        )
        for place, item in enumerate(workload.items)
    )
    return msgspec.structs.replace(workload, items=items)


def arrivals_of(ask: Ask) -> OpenLoop | Closed:
    """What sends requests; in a saturation search the shape, at a rate that does not matter. Raises UsageError."""
    rate = ask.rate_per_s
    match ask.shape:
        case None if ask.saturate:
            return Poisson(1.0, ask.seed)
        case None:
            return Closed(ask.concurrency or 1)
        case "poisson":
            return Poisson(1.0 if rate is None else rate, ask.seed)
        case "constant":
            return Constant(1.0 if rate is None else rate)
        case "bursty":
            return Bursty(1.0 if rate is None else rate, ask.cv, ask.seed)
        case "recorded":
            source = Path(ask.arrivals_from or ask.workload)
            if not source.is_file():
                raise UsageError(
                    f"recorded arrivals need a recording, and {str(source)!r} is none: give one with --arrivals-from FILE"
                )
            own = recorded_arrivals(source, most=100_000)
            speed = 1.0 if rate is None else rate / own.rate_per_s
            return msgspec.structs.replace(own, speed=speed)
