"""Everything that one decision produced, as one JSON document; the HTML and the terminal summary show only what is in it."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from netgain.cost.machine import MachineProbe
from netgain.cost.price import Costs
from netgain.cost.roofline import PhaseLimit, StepCounts, StepWork, decode_limit, prefill_limit
from netgain.deciding.diagnose.bottleneck import Bottleneck
from netgain.deciding.diagnose.hypotheses import Hypothesis
from netgain.deciding.diagnose.workload_classes import WorkloadClass
from netgain.deciding.experiment.agreement import Counted
from netgain.deciding.experiment.analyse import Analysis
from netgain.deciding.experiment.arms.settings_told import ArmSettings
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.family import Place
from netgain.deciding.experiment.observation import Observation
from netgain.deciding.experiment.spending import BudgetAccount
from netgain.deciding.experiment.sweep import Sweep
from netgain.deciding.report.draft_account import DraftAccount
from netgain.deciding.report.kv_account import KVAccount, kv_account
from netgain.deciding.technique.decomposition import Decomposition
from netgain.deciding.technique.prediction import Prediction
from netgain.deciding.verdict.document import Caveat, Deployable, HandoffCost
from netgain.deciding.verdict.quality import Quality
from netgain.ledger.records import DraftCounts
from netgain.ledger.stage import Stage
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.names import Engine

SCHEMA: Literal["netgain.decision"] = "netgain.decision"
VERSION = 1


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for, after defaults. `prompts` were used of `prompts_available`. `loads`: of a sweep over
    concurrencies, in ascending order; `concurrency` is then the one that details are shown of."""

    model: str
    workload: str
    workload_digest: str
    prompts: int
    prompts_available: int
    output_tokens_at_most: int | None
    concurrency: int
    temperature: float | None
    seed: int
    slo: str | None
    minimum_effect: float
    technique: str | None
    form: Literal["quick", "full"]
    loads: tuple[int, ...] = ()


class ArmReport(msgspec.Struct, frozen=True, kw_only=True):
    """One arm as it ran. Distributions are over requests (`e2e_s`, `ttft_s`) in seconds; failures are not in them.

    `tokens_per_s` is output tokens over the wall time of the arm's own blocks; `resident_bytes` its processes' memory. `kv`: None
    where no answer tells of tiers.
    """

    name: str
    command: tuple[str, ...]
    requests: int
    failed: int
    e2e_s: tuple[float, ...]
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    tokens_per_s: float | None
    resident_bytes: int | None
    stage_share: dict[Stage, float]
    kv: KVAccount | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One predicted figure against its measurement. `error` is predicted / measured - 1; None when either is unknown."""

    figure: str
    unit: str
    predicted: float | None
    measured: float | None

    @property
    def error(self) -> float | None:
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1.0


class Drafting(msgspec.Struct, frozen=True, kw_only=True):
    """What speculation did in the candidate's blocks. `committed_per_step` counts all steps after the first token,
    `wasted_per_token` the drafted tokens that did not stand, over all tokens of the answers."""

    counts: DraftCounts
    committed_per_step: float | None
    wasted_per_token: float | None = None


class ArmLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How close one arm's phases came to what the machine was probed to do. Empty: the arm did not tell."""

    arm: str
    phases: tuple[PhaseLimit, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the loop. `analysis` is None when no candidate could be tried; `stopped` then says why. `probe` is the
    machine's, as it was kept before the run. With a sweep over loads, `analysis` and `arms` are of one of them, that of
    `asked.concurrency`. `engine` is what both arms run, `engine_version` as it says itself (None: it does not tell).
    `grown`: why the design was made larger than its form. `cost`: at the price that was given (None: none was). `budget`:
    what became of it (None: there was none). `handoffs_unknown`: why it is not known what they cost an arm, by its name.
    `settings`: every one that the arms told of themselves. `family`: its place among several candidates (None: it was the only
    one)."""

    schema: Literal["netgain.decision"] = SCHEMA
    version: int = VERSION
    created: str
    seconds: float
    first_verdict_s: float | None
    asked: Asked
    context: dict[str, str | int | float | None]
    server: dict[str, str]
    decomposition: Decomposition
    bottleneck: Bottleneck
    hypotheses: tuple[Hypothesis, ...]
    chosen: str | None
    title: str | None
    must_report: tuple[str, ...]
    prediction: Prediction | None
    analysis: Analysis | None
    stopped: str | None
    arms: tuple[ArmReport, ...]
    blocks: tuple[Block, ...]
    probe: MachineProbe | None
    limits: tuple[ArmLimits, ...]
    scores: tuple[Score, ...]
    drafting: Drafting | None
    cache_state: str | None
    deploy: tuple[str, ...] | None
    deploy_note: str | None
    server_client_gap_s: float | None
    looped_baseline: float | None
    cannot_show: tuple[str, ...]
    sweep: Sweep | None = None
    handoffs: tuple[HandoffCost, ...] | None = None
    handoffs_unknown: dict[str, str] = {}
    settings: tuple[ArmSettings, ...] = ()
    quality: Quality | None = None
    caveats: tuple[Caveat, ...] = ()
    deployable: tuple[Deployable, ...] = ()
    engine: Engine = "netgain"
    engine_version: str | None = None
    workload_classes: tuple[WorkloadClass, ...] = ()
    grown: str | None = None
    counted: tuple[Counted, ...] = ()
    draft_account: DraftAccount | None = None
    cost: Costs | None = None
    budget: BudgetAccount | None = None
    family: Place | None = None


def arm_report(
    name: str,
    command: Sequence[str],
    observations: Iterable[Observation],
    blocks: Iterable[Block],
    resident_bytes: int | None,
) -> ArmReport:
    """Summarise one arm's part of the experiment."""
    records = [seen.record for seen in observations if seen.arm == name]
    good = [record for record in records if record.ok]
    own = [block for block in blocks if block.arm == name]
    tokens = [block.output_tokens for block in own]
    known = bool(tokens) and None not in tokens
    wall_s = sum(block.seconds for block in own)
    return ArmReport(
        name=name,
        command=tuple(command),
        requests=len(records),
        failed=len(records) - len(good),
        e2e_s=tuple(record.e2e_s for record in good),
        ttft_s=tuple(record.ttft_s for record in good if record.ttft_s is not None),
        tpot_s=tuple(record.tpot_s for record in good if record.tpot_s is not None),
        tokens_per_s=sum(count or 0 for count in tokens) / wall_s if known and wall_s > 0.0 else None,
        resident_bytes=resident_bytes,
        stage_share=stage_shares(good),
        kv=kv_account(good),
    )


def arm_limits(
    name: str, before: StepCounts | None, after: StepCounts | None, work: StepWork | None, probe: MachineProbe | None
) -> ArmLimits:
    """From what the arm counted before and after it was loaded, and what its steps have to do."""
    if before is None or after is None or work is None:
        return ArmLimits(arm=name, phases=())
    counts = after.since(before)
    return ArmLimits(arm=name, phases=(decode_limit(counts, work, probe), prefill_limit(counts, work, probe)))


def stage_shares(records: Sequence[ClientRecord]) -> dict[Stage, float]:
    """Share of the total end-to-end time of all requests per server stage; the rest is client and network."""
    served = [(record, record.server) for record in records if record.ok and record.server is not None]
    whole = sum(record.e2e_s for record, _ in served)
    if whole <= 0.0:
        return {}
    spent = {stage: sum(server.stages.get(stage, 0.0) for _, server in served) for stage in Stage}
    return {stage: seconds / whole for stage, seconds in spent.items() if seconds > 0.0}


def drafting(records: Iterable[ClientRecord]) -> Drafting | None:
    """Join the draft counts of the given requests; None when none of them drafted."""
    counts, later, plain, output = DraftCounts(), 0, 0, 0
    for record in records:
        if not record.ok or record.server is None:
            continue
        tokens = max(0, record.server.output_tokens - 1)
        later += tokens
        output += record.server.output_tokens
        plain += max(0, tokens - record.server.drafts.committed)
        counts.merge(record.server.drafts)
    if not counts.steps:
        return None
    return Drafting(
        counts=counts,
        committed_per_step=later / (counts.steps + plain),
        wasted_per_token=(sum(counts.drafted) - sum(counts.accepted)) / output if output else None,
    )
