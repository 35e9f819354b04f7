"""Which prompts a run uses, what their answers say about it, and what such a run cannot show."""

import statistics
from collections.abc import Collection, Sequence

import msgspec

from netgain.deciding.decide.settings import Form, Settings
from netgain.deciding.experiment.identity import said
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.experiment.sweeping import TURNS
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.quality.repetition import is_looped
from netgain.measuring.workload.item import Item, Workload
from netgain.wording import count


def times(number: int) -> str:
    """How often, in words where there are words."""
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def prepare_items(workload: Workload, settings: Settings) -> tuple[Item, ...]:
    """The prompts of this run: a fixed subset in the quick form, outputs capped, sampling fixed by seed."""
    form = settings.form
    chosen = workload.subset(prompts_wanted(form, settings.loads)) if settings.quick else workload
    return tuple(
        msgspec.structs.replace(
            item,
            max_tokens=item.max_tokens if form.output_tokens is None else min(item.max_tokens, form.output_tokens),
            temperature=item.temperature if settings.temperature is None else settings.temperature,
            seed=settings.seed * 100_003 + place if item.seed is None else item.seed,
        )
        for place, item in enumerate(chosen.items)
    )


def prompts_wanted(form: Form, loads: Sequence[int]) -> int:
    """How many prompts the form needs, so that each load of a sweep over `loads` (none: a single one) is kept up."""
    return max(form.starts * form.groups * form.group_size, *(form.starts * TURNS * load for load in loads), 0)


def cannot_show(
    settings: Settings, starts: int, items: Sequence[Item], used: Collection[str], reuses: bool = False
) -> tuple[str, ...]:
    """What this form of the run leaves open, whatever its verdict. `starts`: of each arm, which a budget may have made fewer;
    `used` are the ids of those of `items` that were tried. `reuses`: the technique that is tried gains by what earlier requests
    left behind."""
    form = settings.form
    said_so = [
        f"Other loads: {_in_flight(settings)} in flight, the next sent when one ends (closed loop). Queueing "
        "at a given arrival rate is not shown.",
        "Other models, machines and workloads: the effect depends on "
        + (
            "how much prompts share, how much room the device has, and what computing and loading cost here."
            if reuses
            else "how much the output copies and on what a wider step costs here."
        ),
        f"Warm prefix caches: each {'start of the servers' if reuses else 'block'} began cold.",
    ]
    if starts < FEWEST_UNITS:
        said_so.append(
            f"Differences between server starts: each arm was started {times(starts)}, so the verdict holds within these "
            "starts. The noise floor compares blocks of one start."
        )
    if settings.quick and form.output_tokens is not None:
        said_so.append(
            f"Long outputs: they were cut at {count(form.output_tokens, 'token')}. What is copied late in an answer is missing, "
            "and prefill weighs more than it would."
        )
    if len(used) < len(items):
        said_so.append(
            f"{len(items) - len(used)} of {len(items)} prompts: they did not fit the time of this form on this machine."
        )
    if len(used) < 100:
        said_so.append(
            f"Rare events: {count(len(used), 'prompt')} cannot show a p99 of requests; tails above are those of these prompts."
        )
    return tuple(said_so)


def _in_flight(settings: Settings) -> str:
    if settings.loads:
        return f"{', '.join(map(str, settings.loads))} requests"
    return count(settings.concurrency, "request")


def looped_share(records: Sequence[ClientRecord]) -> float | None:
    """Share of the baseline's answers that repeat themselves."""
    answers = [answer for answer in (said(record) for record in records) if answer is not None]
    if not answers:
        return None
    return sum(is_looped(answer.split() if isinstance(answer, str) else answer) for answer in answers) / len(answers)


def server_client_gap_s(records: Sequence[ClientRecord]) -> float | None:
    """Median seconds that the client waits beyond its own lateness, opening a connection and the server's stages."""
    gaps = [
        record.e2e_s - record.lateness_s - (record.connect_s or 0.0) - sum(record.server.stages.values())
        for record in records
        if record.ok and record.server is not None
    ]
    return statistics.median(gaps) if gaps else None
