"""What a comparison is asked to do, checked before anything is read or sent."""

import math
from pathlib import Path

import msgspec

from netgain.cost.price import Price
from netgain.deciding.compare.rule import Kind
from netgain.deciding.decide.settings import FULL as FULL_OF_STARTS
from netgain.deciding.decide.settings import QUICK as QUICK_OF_STARTS
from netgain.deciding.decide.settings import Form, check_loads
from netgain.deciding.experiment.arms.described import Described
from netgain.deciding.experiment.quality_gate import QualityLimits
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.experiment.verdict import MINIMUM_EFFECT
from netgain.errors import UsageError
from netgain.measuring.client.endpoint import base_url
from netgain.measuring.quality.paired_scores import MARGIN
from netgain.measuring.quality.texts import BUNDLED
from netgain.measuring.workload.arrivals import Poisson
from netgain.measuring.workload.slo import parse_slo
from netgain.wording import count

QUICK = Form(starts=1, groups=12, group_size=2, output_tokens=64)
FULL = Form(starts=1, groups=24, group_size=2, output_tokens=None)
CONTROL_EVERY = 3
MOST_STARTS = 50
OPEN_LOOP_SIZE = 8  # requests of a block at least: with fewer there is no queue to see
START_TIMEOUT_S = 1200.0


class SideAsked(msgspec.Struct, frozen=True, kw_only=True):
    """`sources`: one URL, paths of results, or the words that describe an arm, which is then `arm`. `model`: which of the
    server's models. `declared`: see `traits.declared`."""

    sources: tuple[str, ...]
    arm: Described | None = None
    model: str | None = None
    declared: tuple[str, ...] = ()
    headers: dict[str, str] = {}


class QualityAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What the quality of both sides is measured on before time counts, and what the candidate may lose."""

    texts: str = BUNDLED
    tasks: str | None = None
    scorer: str | None = None
    margin: float = MARGIN
    limits: QualityLimits = QualityLimits()

    def __post_init__(self) -> None:
        if not 0.0 < self.margin < 1.0:
            raise UsageError(f"the margin is {self.margin}; give a share such as 0.01 for 1 percentage point")
        if self.texts == "none" and self.tasks is None:
            raise UsageError("without texts and without tasks no quality is measured; give --tasks FILE or --texts")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. `promises_identity`: the candidate promises the baseline's very tokens. `may_reset`: the
    servers' caches may be reset (others may use them). `budget_s`: for the experiment, of started arms in device-seconds.
    `rate_per_s`: requests come at that rate (Poisson) instead of keeping `concurrency` in flight.
    `starts`: of each arm, where both are started here (None: as many as the form has). `resume`: `output` holds a run
    that ended before its end. `quality` None: it is not measured. `price`: what both sides cost is told as well. `loads`: several
    concurrencies to compare at, in ascending order, the first of which is `concurrency`; empty for a single one."""

    output: Path
    baseline: SideAsked
    candidate: SideAsked
    kind: Kind = "equal resources"
    overrides: tuple[str, ...] = ()
    control: bool = False
    may_reset: bool = False
    promises_identity: bool = False
    workload: str = "chat"
    concurrency: int = 1
    rate_per_s: float | None = None
    quick: bool = False
    budget_s: float | None = None
    output_tokens: int | None = None
    ignore_eos: bool = False
    temperature: float | None = None
    slo: str | None = None
    minimum_effect: float = MINIMUM_EFFECT
    seed: int = 0
    request_timeout_s: float = 300.0
    starts: int | None = None
    start_timeout_s: float = START_TIMEOUT_S
    resume: bool = False
    quality: QualityAsked | None = None
    price: Price | None = None
    loads: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"the concurrency is {self.concurrency}; it must be at least 1")
        check_loads(self.loads, self.concurrency)
        if self.loads and self.kind == "scaling":
            raise UsageError(
                "--scaling tells the throughput at one load; give one, or leave --scaling out to see up to which load the "
                "candidate is faster"
            )
        if self.rate_per_s is not None:
            Poisson(self.rate_per_s)  # refuses what is no rate
            if self.concurrency != 1 or self.loads:
                raise UsageError("--concurrency is a closed loop and --rate an open one: give one of them")
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"the seed is {self.seed}; it must lie in [0, 2^32)")
        if self.temperature is not None and not 0.0 <= self.temperature <= 2.0:
            raise UsageError(f"the temperature is {self.temperature}; it must lie in [0, 2]")
        if not 0.0 < self.minimum_effect < 1.0:
            raise UsageError(f"the minimum effect is {self.minimum_effect}; give a share such as 0.03 for 3 %")
        if self.output_tokens is not None and self.output_tokens < 2:
            raise UsageError(f"outputs of {count(self.output_tokens, 'token')} show no decode; allow at least 2")
        if self.budget_s is not None and not 0.0 < self.budget_s < math.inf:
            raise UsageError(f"the budget is {self.budget_s:g} s; it must be positive and finite")
        if self.slo is not None:
            parse_slo(self.slo)
        sides = (self.baseline, self.candidate)
        results = [side.arm is None and not any(map(is_url, side.sources)) for side in sides]
        if any(results) and not all(results):
            raise UsageError(
                "one side is a server and the other a result: they cannot be measured in turns. Name two servers, or measure the "
                "one with netgain measure and name two results"
            )
        if all(results):
            self._check_results()
        else:
            self._check_servers()
        self._check_starts()

    @property
    def servers(self) -> bool:
        """Whether servers are compared, running or started, not results."""
        return self.baseline.arm is not None or is_url(self.baseline.sources[0])

    @property
    def started(self) -> dict[str, Described]:
        """The sides that are started here."""
        sides = {"baseline": self.baseline, "candidate": self.candidate}
        return {name: side.arm for name, side in sides.items() if side.arm is not None}

    @property
    def devices(self) -> int:
        """How many a started arm occupies, the larger one where they differ; of one that nothing tells, one is assumed."""
        return max((arm.devices or 1 for arm in self.started.values()), default=1)

    @property
    def devices_assumed(self) -> bool:
        """Whether one device is only assumed of a started arm."""
        return any(arm.devices is None for arm in self.started.values())

    @property
    def same_server(self) -> bool:
        """Whether both sides are one running server, which only an A/A run may be."""
        if self.started:
            return False
        before, after = (_place(side.sources[0]) for side in (self.baseline, self.candidate))
        return before == after and self.baseline.model == self.candidate.model

    @property
    def in_flight(self) -> str:
        """The load of a closed loop, in words."""
        if self.loads:
            return f"{', '.join(map(str, self.loads))} requests in flight"
        return f"{count(self.concurrency, 'request')} in flight"

    @property
    def form(self) -> Form:
        base = QUICK if self.quick else FULL
        if len(self.started) == 2:
            base = msgspec.structs.replace(QUICK_OF_STARTS if self.quick else FULL_OF_STARTS, recording_s=None)
            if self.starts is not None:
                groups = max(base.groups, -(-FEWEST_UNITS // self.starts))
                base = msgspec.structs.replace(base, starts=self.starts, groups=groups, most_starts=None)
        size = 2 * self.concurrency if self.concurrency > 1 else 1
        return msgspec.structs.replace(
            base,
            group_size=max(base.group_size, size if self.rate_per_s is None else OPEN_LOOP_SIZE),
            output_tokens=base.output_tokens if self.output_tokens is None else self.output_tokens,
            control_every=CONTROL_EVERY if self.control and not self.same_server else None,
            experiment_s=base.experiment_s if len(self.started) == 2 else self.budget_s,
        )

    def _check_results(self) -> None:
        if self.control:
            raise UsageError("--control asks the baseline's server twice, and results are no servers: leave it out")
        if self.quality is not None:
            raise UsageError(
                "quality is measured by asking servers, and results are none: compare the servers, or leave out --texts"
            )
        asked = {
            "--workload": self.workload != "chat",
            "--concurrency": self.concurrency != 1 or bool(self.loads),
            "--rate": self.rate_per_s is not None,
            "--quick": self.quick,
            "--budget": self.budget_s is not None,
            "--max-tokens": self.output_tokens is not None,
            "--ignore-eos": self.ignore_eos,
            "--temperature": self.temperature is not None,
            "--reset-caches": self.may_reset,
            "--resume": self.resume,
            "--header": bool(self.baseline.headers or self.candidate.headers),
        }
        if given := [option for option, is_given in asked.items() if is_given]:
            raise UsageError(
                f"results were measured already, so nothing is asked of a server any more: leave out {', '.join(given)}"
            )

    def _check_starts(self) -> None:
        if self.starts is not None and len(self.started) < 2:
            raise UsageError("--starts is for two arms that are started here; what others run is measured as it runs")
        if self.starts is not None and not 1 <= self.starts <= MOST_STARTS:
            raise UsageError(f"the starts are {self.starts}; they must lie in [1, {MOST_STARTS}]")

    def _check_servers(self) -> None:
        for name, side in (("baseline", self.baseline), ("candidate", self.candidate)):
            if len(side.sources) > 1:
                raise UsageError(f"--{name} names {len(side.sources)} servers; name one (several are for results)")
            if side.arm is None:
                base_url(side.sources[0])
        pinned = [arm.port for arm in self.started.values() if arm.port is not None]
        if len(pinned) != len(set(pinned)):
            raise UsageError(f"both arms pin port {pinned[0]}, and both run at once; give each a port of its own")
        if self.same_server and not self.control:
            raise UsageError(
                f"baseline and candidate are the same server, {self.baseline.sources[0]}: name two, or use --control to see "
                "what comparing it with itself shows"
            )


def is_url(source: str) -> bool:
    """Whether a side is named by an address, not by a path."""
    return "://" in source


def _place(url: str) -> str:
    return base_url(url).replace("//localhost", "//127.0.0.1").replace("//[::1]", "//127.0.0.1")
