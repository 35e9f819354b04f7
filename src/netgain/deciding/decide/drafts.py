"""What the loop knows of drafts: the one that was named, what copied ones would do, and the memory that they took."""

from collections.abc import Iterable, Mapping, Sequence

import aiohttp
import msgspec

from netgain.deciding.decide.server import CARD_TIMEOUT_S, Served, served_model, whole_number
from netgain.deciding.decide.settings import Settings
from netgain.deciding.diagnose.hypotheses import Hypothesis
from netgain.deciding.diagnose.workload_classes import COPIES
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.report.draft_account import ArmMemory, DraftAccount
from netgain.deciding.report.outcome import Drafting
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.drafter import Drafter, read_drafter
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.prediction import Prediction
from netgain.errors import Unavailable
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.exposition import read_exposition
from netgain.measuring.observe.names import Figure

DRAFTING = ("ngram", "suffix", "draft", "heads")  # the techniques whose drafts are accounted for


def copying(facts: Facts, hypotheses: Sequence[Hypothesis]) -> dict[str, Prediction | None]:
    """What copied drafts are predicted to do, also where another technique was asked for: it tells the workload's class. Where
    only prompts were measured and no step that decodes, nothing can be."""
    found = {one.technique: one.prediction for one in hypotheses}
    if facts.step_cost is not None and all(point.tokens > 1 for point in facts.step_cost.points):
        facts = msgspec.structs.replace(facts, step_cost=None)
    for name in COPIES:
        if name not in found:
            copied = CATALOGUE[name]
            found[name] = None if copied.cannot_apply(facts) else copied.predict(facts)
    return found


def drafter_on(settings: Settings, served: Served) -> Drafter | None:
    """The draft that was named, with what a pass of it costs beside this server's steps."""
    if settings.draft is None:
        return None
    drafter = read_drafter(settings.draft, settings.draft_survival, settings.draft_cost)
    return drafter.on(None if served.work is None else served.work.step_weight_bytes)


async def memories(technique: str, arms: Mapping[str, Arm]) -> dict[str, ArmMemory]:
    """Of both arms, while they run. Empty where the technique is not one that drafts."""
    if technique not in DRAFTING:
        return {}
    return {name: await arm_memory(arms[name]) for name in (BASELINE, CANDIDATE)}


def draft_account(
    memory: Mapping[str, ArmMemory], trial: Trial, drafted: Drafting | None, drafter: Drafter | None
) -> DraftAccount | None:
    """None where the technique is not one that drafts, of which there is no `memory`."""
    if not memory:
        return None
    return DraftAccount(
        baseline=memory[BASELINE],
        candidate=memory[CANDIDATE],
        request_tokens=mean_tokens(seen.record for seen in trial.observations if seen.arm == BASELINE),
        wasted_per_token=drafted.wasted_per_token if drafted else wasted_per_token(trial.figures.get(CANDIDATE, {})),
        origin=drafter.origin or None if drafter is not None else None,
    )


async def arm_memory(arm: Arm) -> ArmMemory:
    """What its server tells of its KV cache and its drafts; all None where it tells nothing."""
    try:
        told = (await served_model(arm.url, arm.headers)).told
    except Unavailable:
        return ArmMemory()
    return ArmMemory(
        kv_tokens=whole_number(told.get("kv_tokens")),
        kv_token_bytes=whole_number(told.get("kv_token_bytes")),
        draft_weight_bytes=whole_number(told.get("draft_weight_bytes")),
        draft_kv_token_bytes=whole_number(told.get("draft_kv_token_bytes")),
        suffix_index_bytes=await _suffix_index_bytes(arm),
    )


async def _suffix_index_bytes(arm: Arm) -> int | None:
    try:
        timeout = aiohttp.ClientTimeout(total=CARD_TIMEOUT_S)
        session = aiohttp.ClientSession(timeout=timeout, headers=arm.headers)
        async with session, session.get(f"{arm.url}/metrics") as response:
            text = (await response.read()).decode()
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None
    family = read_exposition(text, 0.0).families.get("netgain_suffix_index_bytes")
    return int(sum(sample.value for sample in family.samples)) if family is not None and family.samples else None


def mean_tokens(records: Iterable[ClientRecord]) -> float | None:
    """Prompt and answer together, of the answered requests whose lengths are known."""
    lengths = [
        record.prompt_tokens + record.output_tokens
        for record in records
        if record.ok and record.prompt_tokens is not None and record.output_tokens is not None
    ]
    return sum(lengths) / len(lengths) if lengths else None


def wasted_per_token(figures: Mapping[str, Figure]) -> float | None:
    """By a server's counters, for engines that send no account with each answer. At least so many: a server counts drafts as
    accepted that lie behind an answer's end."""
    drafted, accepted, output = (
        figures[name].gained if name in figures else None
        for name in ("drafted_tokens", "accepted_tokens", "output_tokens")
    )
    if drafted is None or accepted is None or not output:
        return None
    return (drafted - accepted) / output
