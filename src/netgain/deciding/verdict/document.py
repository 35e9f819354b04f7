"""The verdict as a document that outlives the run: `verdict.json`, one schema for every engine, technique and way of comparing.

What is unknown is null, never 0. Ratios are baseline / candidate times: above 1 the candidate is faster. Times are seconds;
infinite ones (a failure reached them) are null, with the failures counted beside. docs/decide.md describes every field.
"""

from typing import Literal

import msgspec

from netgain.cost.price import Costs
from netgain.deciding.experiment.agreement import Counted
from netgain.deciding.experiment.family import Place
from netgain.deciding.experiment.guards import GuardState
from netgain.deciding.experiment.power import Needed
from netgain.deciding.experiment.rollback import Rollback
from netgain.deciding.experiment.slo import SloOutcome
from netgain.deciding.experiment.spending import BudgetAccount
from netgain.deciding.experiment.statistics import Effect
from netgain.deciding.experiment.sweep import Sweep
from netgain.deciding.experiment.tails import Tail
from netgain.deciding.experiment.verdict import Check, Decision, Finding
from netgain.deciding.technique.kind import Kind
from netgain.deciding.verdict.quality import Quality

SCHEMA: Literal["netgain.verdict"] = "netgain.verdict"
VERSION: Literal[1] = 1

Resources = Literal["equal resources", "scaling"]


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What was tried. `kind`: what the technique promises of its output. `setting`: of the technique, as it ran."""

    name: str
    title: str
    kind: Kind | None = None
    setting: dict[str, int | float | str] | None = None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What the servers were asked. `concurrency`: requests in flight of a closed loop, in the order in which they were tried."""

    workload: str
    digest: str | None = None
    prompts: int | None = None
    output_tokens_at_most: int | None = None
    concurrency: tuple[int, ...] = ()
    rate_per_s: float | None = None
    temperature: float | None = None
    slo: str | None = None
    seed: int | None = None


class ArmFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One side as it ran. `settings`: what it says of itself (numbers as text)."""

    name: str
    engine: str | None = None
    version: str | None = None
    model: str | None = None
    url: str | None = None
    command: tuple[str, ...] | None = None
    requests: int | None = None
    failed: int | None = None
    tokens_per_s: float | None = None
    resident_bytes: int | None = None
    settings: dict[str, str] = {}


class DesignFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How it was measured. `starts` of each arm; `unit`: what was resampled; `order`: of the blocks of one group.
    `stopped`: why it ended before all was measured (None: it did not, or its `budget` ended it, which then says so)."""

    form: str | None = None
    starts: int | None = None
    groups: int | None = None
    group_size: int | None = None
    blocks: int | None = None
    requests: int | None = None
    unit: str | None = None
    order: str | None = None
    cache_state: str | None = None
    grown: str | None = None
    stopped: str | None = None
    budget: BudgetAccount | None = None


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """The baseline against itself. `repeats`: first block of a group against its last; `starts`: against a second start.

    `noise_floor`: how far (0.03 = 3 %) such a comparison may lie from no change."""

    repeats: Effect | None = None
    starts: Effect | None = None
    noise_floor: float | None = None


class GuardLine(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that must not get worse. Seconds, or a share for `failed share`; `low` and `high` bound the candidate's."""

    name: str
    state: GuardState
    baseline: float | None
    candidate: float | None
    low: float | None
    high: float | None
    limit: float | None
    basis: str
    p: float
    level: float


class HandoffCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of handoff cost one arm over all its blocks, by the engine's own counters. Null: not told. `hidden_s` is the
    known part of `busy_s` that ran behind something else."""

    arm: str
    kind: str
    handoffs: float | None = None
    failed: float | None = None
    bytes: float | None = None
    used_tokens: float | None = None
    wasted_tokens: float | None = None
    wasted_bytes: float | None = None
    waited_s: float | None = None
    busy_s: float | None = None
    hidden_s: float | None = None


class GainAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds per request, which add up: baseline_s - candidate_s = sum of saved_s + residual_s.

    `saved_s` by server stage, negative where the candidate spends more. `residual_s`: network, client and clocks. `by`:
    whether the stages came with each answer, or are means over the run by the servers' /metrics, whose residual has the
    stages that they do not tell, too."""

    requests: int
    baseline_s: float
    candidate_s: float
    saved_s: dict[str, float]
    residual_s: float
    by: Literal["records", "metrics"] = "records"


class Caveat(msgspec.Struct, frozen=True, kw_only=True):
    """Something a reader of this verdict must know. `engine` None: whatever the engine. `source`: where it is told."""

    says: str
    engine: str | None = None
    source: str | None = None


class Deployable(msgspec.Struct, frozen=True, kw_only=True):
    """How one engine is started in the state that the verdict advises: as a command, of netgain also as a file for its --config.

    Only switches that started the real engine are given: `checked_with` lists its versions. `note` says why there is none.
    """

    engine: str
    advises: Literal["candidate", "baseline"]
    flags: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    config_file: str | None = None
    checked_with: tuple[str, ...] = ()
    note: str | None = None


class VerdictDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict with everything that it rests on.

    `primary` is the effect that decided, named by `metric`, its interval of `confidence`. `others` are further effects of the
    same run, which decided nothing. `detectable` is the least true gain that four repeats in five would adopt, `needed` what
    would decide an inconclusive run. With several loads `sweep` holds one effect per load. `counted`: the servers' own counters
    beside the client's counts. `cost`: at the price that was given (None: none was). `handoffs`: of the arms that tell them
    (None: none does); one that is not there had none, unless `handoffs_unknown` says by its name why that is not known.
    `family`: its place among several candidates that were tried for one purpose, with the level it was held to (None: it was the
    only one).
    """

    schema: Literal["netgain.verdict"] = SCHEMA
    version: Literal[1] = VERSION
    netgain: str | None = None
    created: str
    decision: Decision
    finding: Finding
    void: bool
    headline: str
    reasons: tuple[str, ...]
    scope: str
    technique: Subject
    resources: Resources | None = None
    differing: tuple[str, ...] = ()
    load: Load
    metric: str
    primary: Effect | None
    confidence: float
    minimum_effect: float
    threshold: float
    detectable: float | None
    needed: Needed | None
    others: dict[str, Effect | None] = {}
    tails: tuple[Tail, ...] = ()
    sweep: Sweep | None = None
    guards: tuple[GuardLine, ...] = ()
    checks: tuple[Check, ...] = ()
    slo: SloOutcome | None = None
    quality: Quality
    handoffs: tuple[HandoffCost, ...] | None = None
    handoffs_unknown: dict[str, str] = {}
    gain: GainAccount | None = None
    cost: Costs | None = None
    family: Place | None = None
    counted: tuple[Counted, ...] = ()
    control: Control = Control()
    design: DesignFacts = DesignFacts()
    arms: tuple[ArmFacts, ...] = ()
    machine: dict[str, str | int | float | None] = {}
    caveats: tuple[Caveat, ...] = ()
    cannot_show: tuple[str, ...] = ()
    rollback: Rollback | None = None
    deploy: tuple[Deployable, ...] = ()
