"""What a comparison of servers knows before its run, and what the run gave."""

import msgspec

from netgain.deciding.compare.meeting import Known
from netgain.deciding.compare.rule import Ruling
from netgain.deciding.decide.quality import Judged as QualityJudged
from netgain.deciding.experiment.arms.cold import ColdCache
from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.experiment.spending import BudgetAccount
from netgain.measuring.measurement.server import Met
from netgain.measuring.observe.handoffs import Handoffs
from netgain.measuring.observe.names import Figure
from netgain.measuring.observe.scrape import Observed as Watched
from netgain.measuring.workload.item import Workload


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Two servers that may be compared and answer. `salted`: both know cache salts. `cold`: what a probe of each cache said."""

    known: dict[str, Known]
    met: dict[str, Met]
    ruling: Ruling
    workload: Workload
    salted: bool
    may_reset: bool
    cold: dict[str, ColdCache] = {}

    @property
    def repeatable(self) -> bool:
        """Whether a prompt that was answered once can be asked again without being found."""
        return self.salted or all(cold.verified is True for cold in self.cold.values())

    @property
    def devices(self) -> dict[str, int | None]:
        """Of each side, as its server told or somebody declared; None where nobody did."""
        told = {name: one.traits.get("devices") for name, one in self.known.items()}
        return {name: one.value if one and isinstance(one.value, int) else None for name, one in told.items()}

    @property
    def request_s(self) -> float:
        """Seconds that a single request takes, of the slower server."""
        return max(one.unloaded_s for one in self.met.values())


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run. `watched`: counters of the servers that ran already; `figures`: what either side counted; `handoffs`: what
    theirs cost; `urls` of all arms as they were at the end; `budget`: what became of it (None: there was none)."""

    trial: Trial
    watched: dict[str, Watched | None]
    figures: dict[str, dict[str, Figure]]
    handoffs: dict[str, Handoffs]
    urls: dict[str, str]
    commands: dict[str, tuple[str, ...]]
    resident: dict[str, int | None]
    quality: QualityJudged | None
    grown: str | None
    caveats: tuple[str, ...]
    budget: BudgetAccount | None = None
