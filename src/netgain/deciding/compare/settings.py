"""What a comparison is asked to do, checked before anything is read or sent."""

from pathlib import Path

import msgspec

from netgain.deciding.compare.rule import Kind
from netgain.deciding.decide.settings import Form
from netgain.deciding.experiment.verdict import MINIMUM_EFFECT
from netgain.errors import UsageError
from netgain.measuring.client.endpoint import base_url
from netgain.measuring.workload.slo import parse_slo
from netgain.wording import count

QUICK = Form(starts=1, groups=12, group_size=2, output_tokens=64)
FULL = Form(starts=1, groups=24, group_size=2, output_tokens=None)
CONTROL_EVERY = 3


class SideAsked(msgspec.Struct, frozen=True, kw_only=True):
    """`sources`: one URL, or paths of results. `model`: which of the server's models. `declared`: see `traits.declared`."""

    sources: tuple[str, ...]
    model: str | None = None
    declared: tuple[str, ...] = ()
    headers: dict[str, str] = {}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. `promises_identity`: the candidate promises the baseline's very tokens. `may_reset`: the
    servers' caches may be reset (others may use them). `budget_s`: for the experiment."""

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
    quick: bool = False
    budget_s: float | None = None
    output_tokens: int | None = None
    ignore_eos: bool = False
    temperature: float | None = None
    slo: str | None = None
    minimum_effect: float = MINIMUM_EFFECT
    seed: int = 0
    request_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"the concurrency is {self.concurrency}; it must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"the seed is {self.seed}; it must lie in [0, 2^32)")
        if self.temperature is not None and not 0.0 <= self.temperature <= 2.0:
            raise UsageError(f"the temperature is {self.temperature}; it must lie in [0, 2]")
        if not 0.0 < self.minimum_effect < 1.0:
            raise UsageError(f"the minimum effect is {self.minimum_effect}; give a share such as 0.03 for 3 %")
        if self.output_tokens is not None and self.output_tokens < 2:
            raise UsageError(f"outputs of {count(self.output_tokens, 'token')} show no decode; allow at least 2")
        if self.budget_s is not None and not self.budget_s > 0.0:
            raise UsageError(f"the budget is {self.budget_s / 60.0:g} minutes; it must be positive")
        if self.slo is not None:
            parse_slo(self.slo)
        urls = [is_url(source) for side in (self.baseline, self.candidate) for source in side.sources]
        if any(urls) and not all(urls):
            raise UsageError(
                "one side is a running server and the other a result: they cannot be measured in turns. Name two URLs, or "
                "measure the server with netgain measure and name two results"
            )
        if all(urls):
            self._check_urls()
        elif self.control:
            raise UsageError("--control asks the baseline's server twice, and results are no servers: leave it out")

    @property
    def servers(self) -> bool:
        """Whether running servers are compared, not results."""
        return is_url(self.baseline.sources[0])

    @property
    def same_server(self) -> bool:
        """Whether both sides are one server, which only an A/A run may be."""
        before, after = (_place(side.sources[0]) for side in (self.baseline, self.candidate))
        return before == after and self.baseline.model == self.candidate.model

    @property
    def form(self) -> Form:
        base = QUICK if self.quick else FULL
        return msgspec.structs.replace(
            base,
            group_size=max(base.group_size, 2 * self.concurrency if self.concurrency > 1 else 1),
            output_tokens=base.output_tokens if self.output_tokens is None else self.output_tokens,
            control_every=CONTROL_EVERY if self.control and not self.same_server else None,
            experiment_s=self.budget_s,
        )

    def _check_urls(self) -> None:
        for name, side in (("baseline", self.baseline), ("candidate", self.candidate)):
            if len(side.sources) > 1:
                raise UsageError(f"--{name} names {len(side.sources)} servers; name one (several are for results)")
            base_url(side.sources[0])
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
