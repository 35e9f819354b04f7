"""The second half of a decision, for one candidate: its paired experiment beside the baseline, and all that can only be learned
while the servers run. Nothing is judged here."""

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from netgain.deciding.decide.context import caveats_of
from netgain.deciding.decide.drafts import memories
from netgain.deciding.decide.engines import asking, baseline_flags, caveats_before, launch, settings_of
from netgain.deciding.decide.growing import when_enough
from netgain.deciding.decide.prepared import Prepared, journal_of, settings_tree
from netgain.deciding.decide.preparing import predicted
from netgain.deciding.decide.promise_kept import Kept, judge_promise
from netgain.deciding.decide.quality import Judged as QualityJudged
from netgain.deciding.decide.quality import judge_arms, limits_of, quality_ask
from netgain.deciding.decide.server import Served, step_counts
from netgain.deciding.decide.settings import Settings
from netgain.deciding.decide.sweeping import announcement
from netgain.deciding.diagnose.hypotheses import Hypothesis
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.settings_told import ArmSettings
from netgain.deciding.experiment.arms.startup import bring_up_others, end, start_again
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.conduct import Trial, conduct
from netgain.deciding.experiment.growth import Growth
from netgain.deciding.experiment.journal import FILE
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL
from netgain.deciding.experiment.spending import BudgetAccount, Spending
from netgain.deciding.experiment.statistics import CONFIDENCE
from netgain.deciding.experiment.trial_file import write_records
from netgain.deciding.report.draft_account import ArmMemory
from netgain.deciding.report.outcome import ArmLimits, arm_limits
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.kind import Kind
from netgain.deciding.technique.promise import promised_on
from netgain.deciding.verdict.document import Caveat
from netgain.errors import Unavailable, UsageError
from netgain.measuring.client.narrator import Narrator
from netgain.plain_file import write_whole

TRIED = "tried.json"


class DoesNotStart(Unavailable):
    """The candidate's server, or its second baseline, did not come up."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate's finished experiment, not judged yet. `promise`: what it promises of its answers on this engine, and `kept`
    what is known of that. By arm: `commands`, `resident` bytes (None: not known), `limits`.
    `memory` is of drafts; `spent_s`: device-seconds that it took; `budget`: what became of its share of one."""

    technique: str
    promise: Kind
    kept: Kept
    trial: Trial
    commands: dict[str, tuple[str, ...]]
    resident: dict[str, int | None]
    limits: tuple[ArmLimits, ...]
    memory: dict[str, ArmMemory]
    quality: QualityJudged | None
    settings: tuple[ArmSettings, ...]
    caveats: tuple[Caveat, ...]
    cache_state: str | None
    grown: str | None
    spent_s: float
    budget: BudgetAccount | None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one candidate has of what was asked for: device-seconds (None: as many as it takes), the account of them as it was
    planned, and the confidence of the interval that must decide."""

    budget_s: float | None
    planned: BudgetAccount | None
    confidence: float = CONFIDENCE


async def try_one(
    one: Hypothesis,
    prepared: Prepared,
    baseline: Arm,
    served: Served,
    settings: Settings,
    share: Share,
    narrator: Narrator,
    begun: Callable[[], None],
) -> Tried:
    """Run the paired experiment for one hypothesis that has a prediction, beside a baseline that runs; all else that it starts is
    ended. `settings.output` is this candidate's folder, in which blocks that were measured before are gone on with (`resume`).
    `begun`: called once the journal is there. Raises DoesNotStart."""
    facts, design = prepared.facts, prepared.design
    chosen, prediction = CATALOGUE[one.technique], one.prediction
    assert prediction is not None
    narrator.found(predicted(one))
    switch = chosen.switch_on(settings.engine, prediction.setting)
    asked = msgspec.structs.replace(asking(settings, served.name), reuses=chosen.reuses)
    async with AsyncExitStack() as stack:
        arms: dict[str, Arm] = {
            BASELINE: baseline,
            CANDIDATE: launch_until(stack, settings, CANDIDATE, switch.flags, narrator),
        }
        if design.with_control:
            arms[CONTROL] = launch_until(stack, settings, CONTROL, baseline_flags(settings.engine), narrator)
        goes_on = settings.resume and (settings.output / FILE).exists()
        journal = journal_of(settings.output, goes_on, settings_tree(settings), design, arms)
        stack.callback(journal.close)
        begun()
        narrator.phase("starting the candidate server")
        try:
            starting_s = await bring_up_others(arms, BASELINE, settings.start_timeout_s)
        except Unavailable as failure:
            raise DoesNotStart(str(failure)) from failure
        narrator.phase("looking for what differs between the arms besides the technique")
        caveats = await caveats_before(settings, arms, asked, switch, chosen.name)
        told = await settings_of(settings.engine, {name: arms[name] for name in (BASELINE, CANDIDATE)})
        for caveat in caveats:
            narrator.found(caveat.says)
        quality = None
        if chosen.kind == "lossy" or settings.tasks is not None:
            asked_of_quality = quality_ask(baseline.url, arms[CANDIDATE].url, facts.records, settings, facts.chunks)
            quality = await judge_arms(asked_of_quality, narrator, limits_of(settings))
        narrator.phase(announcement(design, facts), design.fewest.blocks)
        grown: list[Growth] = []

        def on_block(block: Block, total: int) -> None:
            narrator.step(f"{block.arm}, {block.seconds:.1f} s")

        before = {name: await step_counts(arm.url, arm.headers) for name, arm in arms.items()}

        async def restart(start: int) -> None:
            await start_again(arms, start, settings.start_timeout_s)
            before.update(
                {name: await step_counts(arm.url, arm.headers) for name, arm in arms.items()}
            )  # they count from 0 again

        already = [entry.block for entry in journal.kept]
        spending = Spending(design, share.budget_s, len(arms) * settings.devices, starting_s, already)
        trial = await conduct(
            arms,
            design,
            asked,
            f"netgain-{settings.seed}-{time.time_ns()}",
            on_block,
            restart,
            journal,
            when_enough(design, settings.minimum_effect, settings.seed, narrator, grown.append, share.confidence),
            counting=(BASELINE, CANDIDATE),
            affords=spending.affords,
        )
        budget = spending.account(share.planned, trial.blocks, grown[-1].starts if grown else None)
        spent_s = spending.spent_s
        write_records(settings.output / "records.jsonl", trial)
        after = {name: await step_counts(arm.url, arm.headers) for name, arm in arms.items()}
        promise = promised_on(chosen.kind, settings.engine)
        kept = await judge_promise(
            promise, trial.observations, design.items, arms, settings.engine, served.name, quality
        )
        return Tried(
            technique=chosen.name,
            promise=promise,
            kept=kept,
            trial=trial,
            commands={name: tuple(arm.command) for name, arm in arms.items()},
            resident={name: seen.resident_bytes if (seen := arm.observe()) else None for name, arm in arms.items()},
            limits=tuple(
                arm_limits(name, before[name], after[name], served.work, prepared.base.probe) for name in arms
            ),
            memory=await memories(chosen.name, arms),
            quality=quality,
            settings=told,
            caveats=(*caveats_of(served), *caveats, *kept.caveats(settings.engine)),
            cache_state=await baseline.reset(),
            grown=grown[-1].says if grown else None,
            spent_s=spent_s,
            budget=budget,
        )


def launch_until(stack: AsyncExitStack, settings: Settings, name: str, flags: Sequence[str], narrator: Narrator) -> Arm:
    """An arm, not yet started, that the stack will stop, also when it never became ready."""
    arm = launch(settings, name, flags)
    stack.push_async_callback(end, arm, narrator.found)
    return arm


def keep_tried(folder: Path, tried: Tried) -> None:
    """Raises UsageError when the folder cannot be written."""
    try:
        write_whole(folder / TRIED, msgspec.json.encode(tried))
    except OSError as error:
        raise UsageError(
            f"cannot write {folder} ({error.strerror or error}); make room, or name another folder"
        ) from error


def tried_before(folder: Path) -> Tried | None:
    """What an earlier run had finished of a candidate; None where it had not, or where that cannot be read: its blocks are still
    in the journal, and only the servers are started again."""
    try:
        return msgspec.json.decode((folder / TRIED).read_bytes(), type=Tried)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
