"""Everything that one comparison produced, as one JSON document; terminal and HTML show only what is in it."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from netgain.cost.price import Costs
from netgain.deciding.compare.outputs import Lengths
from netgain.deciding.compare.rule import Kind, Row
from netgain.deciding.compare.scaling import Scaling
from netgain.deciding.experiment.agreement import Counted
from netgain.deciding.experiment.analyse import Analysis
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.spending import BudgetAccount
from netgain.deciding.experiment.sweep import Sweep
from netgain.deciding.report.outcome import ArmReport
from netgain.deciding.verdict.document import HandoffCost
from netgain.deciding.verdict.quality import Quality
from netgain.measuring.observe.names import Figure

SCHEMA: Literal["netgain.comparison"] = "netgain.comparison"
VERSION = 1


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, after defaults. Of results: as far as they tell. `loads`: of a sweep over several, of which
    `concurrency` is the lowest."""

    workload: str | None
    workload_digest: str | None
    prompts: int
    load: str
    concurrency: int | None
    rate_per_s: float | None = None
    output_tokens_at_most: int | None
    ignore_eos: bool
    temperature: float | None
    seed: int
    slo: str | None
    minimum_effect: float
    promises_identity: bool
    form: Literal["quick", "full", "results"]
    loads: tuple[int, ...] = ()


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side: where it is, what serves there, and everything short that it says of itself. `command`: of one that was
    started here. `figures`: what the server's own counters did over the run, over all starts (absent: they could not be read,
    or it is a result)."""

    where: tuple[str, ...]
    model: str | None
    engine: str | None
    version: str | None
    told: dict[str, str]
    figures: dict[str, Figure] = {}
    notes: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`same_server`: an A/A run. `analysis.verdict` of a scaling comparison adopts and rejects nothing: `scaling` is its result.
    `overrides`: fields that were allowed to differ, with the reasons given. `quality`: as measured beside the speed (None:
    not); `lossy`: why it had to be before anything is adopted. `grown`: why the design was made larger than its form. `stopped`:
    why it ended before all was measured (None: it did not). `counted`: what the servers that were started here counted, beside
    what the client did. `handoffs`: what they cost the sides that tell it (None: none does), `handoffs_unknown`: why it is not
    known of the others. `cost`: at the price that was given (None: none was). `budget`: what became of it (None: there was
    none). With a `sweep` over loads `analysis`, `arms` and `cost` are of the lowest of them, under the verdict for all."""

    schema: Literal["netgain.comparison"] = SCHEMA
    version: int = VERSION
    created: str
    seconds: float
    kind: Kind
    same_server: bool
    paired: bool
    asked: Asked
    sides: Mapping[str, Side]
    fields: tuple[Row, ...]
    overrides: Mapping[str, str]
    analysis: Analysis
    scaling: Scaling | None
    lengths: Lengths | None
    arms: tuple[ArmReport, ...]
    blocks: tuple[Block, ...]
    cache_state: str | None
    caveats: tuple[str, ...]
    cannot_show: tuple[str, ...]
    context: dict[str, str | int | float | None]
    quality: Quality | None = None
    lossy: tuple[str, ...] = ()
    grown: str | None = None
    stopped: str | None = None
    counted: tuple[Counted, ...] = ()
    handoffs: tuple[HandoffCost, ...] | None = None
    handoffs_unknown: dict[str, str] = {}
    cost: Costs | None = None
    budget: BudgetAccount | None = None
    sweep: Sweep | None = None

    @property
    def word(self) -> str:
        """The result in a word; a comparison of scaling and an A/A run decide nothing."""
        if self.scaling is not None:
            return "SCALING"
        return "A/A CONTROL" if self.same_server else self.analysis.verdict.decision.upper()

    @property
    def title(self) -> str:
        """What is compared, in a line."""
        before, after = (", ".join(side.where) for side in self.sides.values())
        return f"{after} against {before}"
