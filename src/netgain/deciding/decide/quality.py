"""Quality of a lossy candidate beside the baseline, while both servers are up and before time counts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec

from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.identity import Identity
from netgain.deciding.experiment.quality_gate import (
    GateState,
    QualityFinding,
    QualityGate,
    QualityLimits,
    judge_quality,
)
from netgain.deciding.technique.chunks_told import ChunksSeen
from netgain.deciding.technique.kind import Kind
from netgain.deciding.verdict.quality import Divergence, PerplexityDelta, Quality, QualityState, TaskScore
from netgain.errors import Unavailable, UsageError
from netgain.measuring.client.narrator import Narrator
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.quality.measure import QualityAsk, measure_quality
from netgain.measuring.quality.paired_scores import MARGIN
from netgain.measuring.quality.result import Quality as Measured
from netgain.measuring.quality.tasks import load_tasks, tasks_of
from netgain.measuring.quality.texts import BUNDLED, Text, load_texts
from netgain.measuring.record.as_workload import load_traffic
from netgain.measuring.workload.load import bundled_names

MOST_CONVERSATIONS = 16
MOST_WITH_CHUNKS = 64
WORKLOAD_MARGIN = 0.1  # of task scores on a workload's own prompts, which are few: three dozen that agree can show it
QUICK_TEXTS = 32
WITHOUT_TASKS = (
    "Quality was judged on texts alone, since no tasks were required: what the user's tasks would lose is not known."
)
LOSSLESS_FORMS = frozenset({"raw", "zstd"})
_STATES: Mapping[GateState, QualityState] = {"pass": "held", "fail": "breached", "not enough": "not shown"}


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured (None: it could not be) and what the gate says of it."""

    measured: Measured | None
    gate: QualityGate

    @property
    def doubts(self) -> tuple[str, ...]:
        return (self.gate.says,) if self.gate.state == "not enough" else ()

    @property
    def caveat(self) -> str | None:
        """That nothing but texts speaks for the candidate's quality, where it passed so."""
        asked = None if self.measured is None else self.measured.comparison
        return WITHOUT_TASKS if self.gate.state == "pass" and (asked is None or asked.tasks is None) else None

    @property
    def losses(self) -> tuple[str, ...]:
        return (self.gate.says,) if self.gate.state == "fail" else ()


def check_files(texts: str, tasks: str | None, scorer: str | None) -> None:
    """Raises UsageError for texts or tasks that cannot be used, before any server is started."""
    if texts not in (BUNDLED, "none"):
        load_texts(texts)
    if tasks is not None:
        load_tasks(Path(tasks), scorer is not None)
    elif scorer is not None:
        raise UsageError("a scorer judges the answers to tasks; give them with --tasks FILE")


NOT_THROUGH_STORE = (
    "texts and tasks are computed by the engine, and nothing tells whether their KV came through the codec of the store"
)


def quality_ask(
    baseline: str,
    candidate: str,
    records: Sequence[ClientRecord],
    settings: Settings,
    seen: Mapping[str, ChunksSeen] = MappingProxyType({}),
) -> QualityAsk:
    """Texts are the given ones and the baseline's own recorded conversations, prompt and answer: this workload's law. Tasks are
    the given ones, else the prompts of the workload that say what is right; where they must be the user's own, those of bundled
    workloads do not count as such. `seen`: where their chunks stand, by item."""
    items = load_traffic(settings.workload).items
    lent = settings.require_tasks and settings.workload in bundled_names()
    return QualityAsk(
        url=baseline,
        against=candidate,
        texts=settings.texts,
        texts_given=conversations(records, {item.id: item.chunks for item in items}, seen),
        tasks_given=() if settings.tasks is not None or lent else tasks_of(items),
        margin=MARGIN if settings.tasks is not None else WORKLOAD_MARGIN,
        answers=0,  # the experiment itself compares what both arms answer
        most_texts=QUICK_TEXTS + MOST_CONVERSATIONS if settings.quick and not seen else None,
        tasks=settings.tasks,
        scorer=settings.scorer,
        timeout_s=settings.request_timeout_s,
        seed=settings.seed,
        headers=dict(settings.headers),
    )


def limits_of(settings: Settings) -> QualityLimits:
    """What the candidate may lose, whether tasks must show it, and why texts may not: only netgain says what it loaded."""
    stored = settings.codec is not None and settings.codec.url is not None
    return QualityLimits(tasks=settings.require_tasks is not False, unseen=NOT_THROUGH_STORE if stored else None)


async def judge_arms(ask: QualityAsk, narrator: Narrator, limits: QualityLimits | None = None) -> Judged:
    """A server that cannot be asked leaves quality unmeasured, which holds adoption back."""
    try:
        measured = await measure_quality(ask, narrator)
    except Unavailable as failure:
        says = f"not enough evidence of quality: it could not be measured ({failure})"
        return Judged(measured=None, gate=QualityGate(state="not enough", says=says, findings=()))
    gate = judge_quality(measured.comparison, limits)
    narrator.found(gate.says)
    return Judged(measured=measured, gate=gate)


def conversations(
    records: Sequence[ClientRecord],
    chunks: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    seen: Mapping[str, ChunksSeen] = MappingProxyType({}),
) -> tuple[Text, ...]:
    """Recorded prompts with their answers, by their token ids; those whose ids are not known are left out. `chunks` are those of
    the prompts, by item, and `seen` says where they stand; more texts are taken where there are some, since only what follows
    chunks is scored."""
    found = [
        Text(
            name=f"recorded-{record.item_id}",
            category="recorded",
            prompt=(*record.server.prompt_ids, *record.server.output_ids),
            chunks=chunks.get(record.item_id, ()) if record.item_id in seen else (),
            behind=seen[record.item_id].behind if record.item_id in seen else 0,
        )
        for record in records
        if record.ok
        and record.server is not None
        and record.server.prompt_ids is not None
        and record.server.output_ids is not None
    ]
    return tuple(found[: MOST_WITH_CHUNKS if seen else MOST_CONVERSATIONS])


def for_verdict(judged: Judged, kind: Kind, identity: Identity | None, scorer: str | None) -> Quality:
    """The same in the form in which a verdict holds it. Only a lossy technique is judged by the gate: one that promises
    identical tokens keeps or breaks that promise, whatever the tasks score."""
    found = {one.name: one for one in judged.gate.findings}
    state: QualityState | None = _STATES[judged.gate.state] if kind == "lossy" else None
    if kind == "token-identical" and identity is not None and identity.compared:
        state = "held" if identity.holds else "breached"
    measured = judged.measured
    quality = Quality(state=state, says=f"{judged.gate.says}{_behind_loaded(measured)}", identity=identity)
    if measured is None or measured.comparison is None:
        return quality
    comparison, candidate = measured.comparison, measured.candidate
    apart, tasks = comparison.divergence, comparison.tasks
    if apart is not None:
        before, after = measured.baseline.perplexity, None if candidate is None else candidate.perplexity
        ratio, kl = found["perplexity ratio"], found["KL, at least"]
        quality = msgspec.structs.replace(
            quality,
            perplexity=PerplexityDelta(
                baseline=None if before is None else before.perplexity.value,
                candidate=None if after is None else after.perplexity.value,
                ratio=ratio.value,
                low=ratio.low,
                high=ratio.high,
                texts=apart.kl.texts,
                positions=apart.kl.positions,
                limit=ratio.limit,
                state=ratio.state,
            ),
            divergence=Divergence(
                mean=apart.kl.value,
                low=apart.kl.low,
                high=apart.kl.high,
                p99=apart.kl_p99,
                same_first=apart.same_first.value,
                positions=apart.kl.positions,
                limit=kl.limit,
                state=_worst(kl, found["KL p99, at least"], found["same first choice"]),
            ),
        )
    if tasks is not None:
        of_tasks = found["task score"]
        quality = msgspec.structs.replace(
            quality,
            tasks=(
                TaskScore(
                    name="workload" if measured.task_file is None else Path(measured.task_file).stem,
                    scorer=scorer,
                    baseline=tasks.baseline,
                    candidate=tasks.candidate,
                    difference=tasks.difference,
                    low=tasks.low,
                    high=tasks.high,
                    items=tasks.items,
                    limit=-tasks.margin,
                    state=of_tasks.state,
                ),
            ),
        )
    return quality


def _behind_loaded(measured: Measured | None) -> str:
    """That the candidate's answers came behind KV that it had loaded, and in which form."""
    loaded = None if measured is None or measured.candidate is None else measured.candidate.loaded
    if loaded is None:
        return ""
    forms = loaded.codecs or "unknown forms"
    unused = "; no lossy codec was in use, because raw was sooner" if set(forms.split("+")) <= LOSSLESS_FORMS else ""
    return (
        f" (behind {loaded.loaded_tokens:,} tokens of KV that the candidate loaded from its tiers as {forms}{unused})"
    )


def _worst(*findings: QualityFinding) -> QualityState:
    order: tuple[QualityState, ...] = ("breached", "not shown", "held")
    return next(state for state in order if any(one.state == state for one in findings))
