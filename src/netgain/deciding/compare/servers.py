"""Compares two servers that run: both stay up, one is loaded at a time, in mirrored order per group of prompts."""

import asyncio
import datetime
import time
from collections.abc import Iterable, Mapping

import msgspec

from netgain.deciding.compare.judging import Way, judge_sides
from netgain.deciding.compare.meeting import Known, know
from netgain.deciding.compare.outcome import Asked, Comparison
from netgain.deciding.compare.rule import Ruling, overrides_of, rule
from netgain.deciding.compare.running import LOOPBACK, RunningServer, check_servers
from netgain.deciding.compare.settings import Settings
from netgain.deciding.compare.traits import DECLARABLE
from netgain.deciding.decide.context import context
from netgain.deciding.experiment.arms.attached import AttachedServer
from netgain.deciding.experiment.arms.cold import ColdCache, verify_cold
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.checks import check_trial
from netgain.deciding.experiment.conduct import Asking, Design, Trial, conduct, grouped
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, CONTROL
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.experiment.trial_file import write_records
from netgain.deciding.report.outcome import arm_report
from netgain.errors import Unavailable
from netgain.measuring.measurement.ask import Narrator, load_items
from netgain.measuring.measurement.server import Met, meet
from netgain.measuring.observe.names import known_engine
from netgain.measuring.observe.scrape import Observed as Watched
from netgain.measuring.workload.item import Workload
from netgain.wording import count

PROBE_TIMEOUT_S = 30.0
ADVICE = (
    "the same command with more prompts (without --quick, or with a longer --workload) while nothing else uses the servers or "
    "their machine"
)


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


async def compare_servers(settings: Settings, narrator: Narrator) -> Comparison:
    """Raises UsageError for what cannot be compared and Unavailable when a server does not answer."""
    began_s = time.monotonic()
    ready = await _prepare(settings, narrator)
    narrator.phase("looking whether their caches begin cold")
    cold = {
        name: await verify_cold(_attached(ready, name, name), _hurried(asking))
        for name, asking in _asking(ready, (BASELINE, CANDIDATE)).items()
    }
    ready = msgspec.structs.replace(ready, cold=cold)
    design = _design(ready, settings)
    arms = _arms(ready, design)
    narrator.phase(_announcement(design, ready), design.blocks)

    def on_block(block: Block, total: int) -> None:
        narrator.step(f"{block.arm}, {block.seconds:.1f} s")

    try:
        trial = await conduct(arms, design, _asking(ready, arms), f"netgain-{settings.seed}-{time.time_ns()}", on_block)
        watched = {name: await arms[name].watched() for name in (BASELINE, CANDIDATE)}
    finally:
        for arm in arms.values():
            await arm.stop()
    if not any(seen.record.ok for seen in trial.observations):
        raise Unavailable(
            f"neither server answered a request of the run; the first: {trial.observations[0].record.error}"
        )
    narrator.phase("judging")
    write_records(settings.output / "records.jsonl", trial)
    return await asyncio.to_thread(_judged, settings, ready, design, arms, trial, watched, began_s)


async def _prepare(settings: Settings, narrator: Narrator) -> Prepared:
    narrator.phase("meeting the servers")
    overrides = overrides_of(settings.overrides)
    known = {
        BASELINE: await know(settings, BASELINE, settings.baseline),
        CANDIDATE: await know(settings, CANDIDATE, settings.candidate),
    }
    ruling = rule(known[BASELINE].traits, known[CANDIDATE].traits, settings.kind, overrides, DECLARABLE)
    workload = load_items(known[BASELINE].ask)
    if settings.ignore_eos:
        items = tuple(msgspec.structs.replace(item, ignore_eos=True) for item in workload.items)
        workload = msgspec.structs.replace(workload, items=items)
    met = {name: await meet(one.ask, workload.items, one.greeted) for name, one in known.items()}
    if settings.same_server:  # also under two names of one address
        known[CANDIDATE], met[CANDIDATE] = known[BASELINE], met[BASELINE]
    for name, one in known.items():
        narrator.found(f"{name}: {_introduced(one)}")
    return Prepared(
        known=known,
        met=met,
        ruling=ruling,
        workload=workload,
        salted=all(one.options.salt is not None for one in met.values()),
        may_reset=settings.may_reset,
    )


def _introduced(known: Known) -> str:
    side = known.side
    engine = (
        f"{side.engine} {side.version or '(version unknown)'}"
        if side.engine
        else "an engine that does not say its name"
    )
    return f"{side.model} on {engine}, {side.where[0]}"


def _design(ready: Prepared, settings: Settings) -> Design:
    """Where a cache would find a prompt again, none is sent twice, as far as there are prompts."""
    request_s = max(one.unloaded_s for one in ready.met.values())
    form = settings.form.fitted(request_s, settings.concurrency)
    groups = form.groups
    if not ready.repeatable:
        groups = min(groups, max(FEWEST_UNITS, len(ready.workload.items) // form.group_size))
    chosen = ready.workload.subset(groups * form.group_size)
    return Design(
        groups=grouped(chosen.items, groups, form.group_size),
        concurrency=settings.concurrency,
        control_every=form.control_every,
        mirrored=ready.repeatable,
    )


def _hurried(asking: Asking) -> Asking:
    """For the probe of a cache, which a slow server may leave open."""
    options = msgspec.structs.replace(asking.options, timeout_s=min(asking.options.timeout_s, PROBE_TIMEOUT_S))
    return msgspec.structs.replace(asking, options=options)


def _arms(ready: Prepared, design: Design) -> dict[str, RunningServer]:
    names = {BASELINE: BASELINE, CANDIDATE: CANDIDATE} | ({CONTROL: BASELINE} if design.with_control else {})
    arms = {}
    for name, of in names.items():
        met = ready.met[of]
        metrics = met.metrics_url if name != CONTROL else None
        arms[name] = RunningServer(_attached(ready, of, name), metrics, met.options.headers)
    return arms


def _attached(ready: Prepared, side: str, name: str) -> AttachedServer:
    met = ready.met[side]
    return AttachedServer(name, met.base, known_engine(met.server.engine), ready.may_reset, dict(met.options.headers))


def _asking(ready: Prepared, arms: Iterable[str]) -> dict[str, Asking]:
    """Both are asked for the same, as far as both know it: what one refuses the other is not asked for either."""
    netgain = all(one.options.server_record for one in ready.met.values())
    running = all(one.options.running_usage for one in ready.met.values())
    found = {}
    for name in arms:
        met = ready.met[BASELINE if name == CONTROL else name]
        options = msgspec.structs.replace(
            met.options, salt=None, running_usage=running, server_record=netgain, server_tokens=netgain
        )
        found[name] = Asking(model=met.server.model or "", options=options, salted=ready.salted)
    return found


def _announcement(design: Design, ready: Prepared) -> str:
    request_s = max(one.unloaded_s for one in ready.met.values())
    expected_s = design.requests * request_s / design.concurrency
    return (
        f"comparing: {count(len(design.groups), 'group')} of {count(len(design.groups[0]), 'prompt')}, servers in turn "
        f"(about {expected_s / 60:.1f} min, if requests take as long as the first ones)"
    )


def _judged(
    settings: Settings,
    ready: Prepared,
    design: Design,
    arms: Mapping[str, RunningServer],
    trial: Trial,
    watched: Mapping[str, Watched | None],
    began_s: float,
) -> Comparison:
    asked = {name: _tokens_from(trial, arms, arms[name].url) for name in watched}
    checks = (*check_trial(trial, same_cache=False), *check_servers(watched, asked))
    way = Way(advice=ADVICE, greedy=all(item.temperature == 0.0 for item in design.items))
    judged = judge_sides(trial.observations, checks, ready.ruling, settings, way)
    return Comparison(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=time.monotonic() - began_s,
        kind=settings.kind,
        same_server=settings.same_server,
        paired=True,
        asked=_asked(settings, ready, design),
        sides={
            name: msgspec.structs.replace(
                one.side, figures={} if (seen := watched[name]) is None else seen.figures, notes=ready.met[name].notes
            )
            for name, one in ready.known.items()
        },
        fields=ready.ruling.rows,
        overrides={row.field: row.reason for row in ready.ruling.rows if row.reason is not None},
        analysis=judged.analysis,
        scaling=judged.scaling,
        lengths=judged.lengths,
        arms=tuple(
            arm_report(name, arm.command, trial.observations, trial.blocks, arm.resident_bytes)
            for name, arm in arms.items()
        ),
        blocks=trial.blocks,
        cache_state=_cache_state(ready, design),
        caveats=(*ready.ruling.caveats, *judged.caveats, *_caveats(ready, design)),
        cannot_show=(*ready.workload.notes, *_cannot_show(settings, design)),
        context=context(),
    )


def _cache_state(ready: Prepared, design: Design) -> str:
    if design.mirrored and ready.salted:
        return "every block asks under a cache salt of its own"
    if design.mirrored:
        return "both caches are reset before each block"
    return "not controlled: each prompt is sent to each server once"


def _tokens_from(trial: Trial, arms: Mapping[str, RunningServer], url: str) -> int | None:
    """Output tokens that this client got from one server, by whatever arms; None where a count is unknown."""
    of = {name for name, arm in arms.items() if arm.url == url}
    counts = [seen.record.output_tokens for seen in trial.observations if seen.arm in of and seen.record.ok]
    return None if None in counts else sum(number or 0 for number in counts)


def _asked(settings: Settings, ready: Prepared, design: Design) -> Asked:
    return Asked(
        workload=ready.workload.name,
        workload_digest=ready.workload.digest,
        prompts=len({item.id for item in design.items}),
        load=f"closed loop, {count(settings.concurrency, 'request')} in flight",
        concurrency=settings.concurrency,
        output_tokens_at_most=settings.form.output_tokens,
        ignore_eos=settings.ignore_eos,
        temperature=settings.temperature,
        seed=settings.seed,
        slo=settings.slo,
        minimum_effect=settings.minimum_effect,
        promises_identity=settings.promises_identity,
        form="quick" if settings.quick else "full",
    )


def _caveats(ready: Prepared, design: Design) -> tuple[str, ...]:
    said = [f"{name}: {note}" for name, one in ready.met.items() for note in one.notes]
    hosts = {one.base.partition("://")[2].rpartition(":")[0].strip("[]") for one in ready.met.values()}
    if hosts & set(LOOPBACK):
        said.append(
            "Client and servers share a machine: what the idle server and the client use is taken from the loaded one (see the "
            "checks)."
        )
    said += [f"{name}: {cold.caveat}" for name, cold in ready.cold.items() if cold.caveat is not None]
    if not design.mirrored:
        said.append(
            "At least one server knows no cache salts and was not reset, so nothing sets what the prefix caches hold: each "
            "prompt was sent to each server once, and what an earlier run left there may be found by either."
        )
        if len(design.items) > len({item.id for item in design.items}):
            said.append(
                "There were too few prompts to send each only once, so later groups may have found KV of earlier ones."
            )
    sources = {one.server.engine for one in ready.met.values()}
    if len(sources) > 1:
        said.append("The engines differ, so defaults that were not set (batching, caching, sampling) differ with them.")
    return tuple(said)


def _cannot_show(settings: Settings, design: Design) -> tuple[str, ...]:
    said = [
        "Other starts of these servers: each was measured as it runs now, and another start may be faster or slower by some "
        "percent.",
        f"Other loads: {count(settings.concurrency, 'request')} in flight, the next sent when one ends (closed loop). Queueing "
        "at a given arrival rate is not shown.",
        "Warm prefix caches: " + ("each block began cold." if design.mirrored else "each prompt was new in this run."),
    ]
    if settings.quick and settings.form.output_tokens is not None:
        said.append(f"Long outputs: they were cut at {count(settings.form.output_tokens, 'token')}.")
    prompts = len({item.id for item in design.items})
    if prompts < 100:
        said.append(
            f"Rare events: {count(prompts, 'prompt')} cannot show a p99 of requests; tails are those of these prompts."
        )
    return tuple(said)
