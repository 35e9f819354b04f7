"""The main job: measure a baseline, say where its time goes, predict what would help, try it in pairs, judge, score."""

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec

from netgain.deciding.decide.engines import asking, baseline_flags
from netgain.deciding.decide.judging import judge_all
from netgain.deciding.decide.narrate import Silence
from netgain.deciding.decide.prepared import Prepared, keep, prepared_before
from netgain.deciding.decide.preparing import prepare
from netgain.deciding.decide.question import Question, question_of
from netgain.deciding.decide.server import Served, served_model
from netgain.deciding.decide.settings import Settings
from netgain.deciding.decide.shares import next_share, shared_budget
from netgain.deciding.decide.trying import DoesNotStart, Tried, keep_tried, launch_until, tried_before, try_one
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.idle import find_spinners
from netgain.deciding.experiment.arms.startup import bring_up
from netgain.deciding.experiment.observation import BASELINE
from netgain.deciding.report.outcome import Outcome
from netgain.deciding.report.several import Several
from netgain.errors import Unavailable, UsageError
from netgain.measuring.client.interrupt import run_interruptible
from netgain.measuring.client.narrator import Narrator
from netgain.wording import count


def decide(settings: Settings, narrator: Narrator | None = None) -> Outcome:
    """Run the loop for one candidate and return what it found; servers it started are gone when it returns, raises or is
    interrupted.

    Raises UsageError for input that cannot be used and Unavailable when a server does not start or answer.
    """
    if settings.most > 1:
        raise UsageError(f"{settings.most} candidates are tried by decide_several")
    found = decide_several(settings, narrator)
    return found.outcomes[0] if found.outcomes else found.base


def decide_several(settings: Settings, narrator: Narrator | None = None) -> Several:
    """As `decide`, for as many candidates as were asked for, which are judged together."""
    return run_interruptible(decide_async(settings, narrator or Silence()))


async def decide_async(settings: Settings, narrator: Narrator) -> Several:
    """The same within a running event loop."""
    began_s = time.monotonic()
    question = question_of(settings)
    prepared = prepared_before(settings) if settings.resume else None
    async with AsyncExitStack() as stack:
        baseline = _Baseline(launch_until(stack, settings, BASELINE, baseline_flags(settings.engine), narrator))
        if prepared is None:
            served = await baseline.up(settings, narrator)
            asked = asking(settings, served.name)
            prepared = await prepare(question, baseline.arm, served, asked, settings, baseline.start_s, narrator)
        tried, untried = await _try_all(prepared, baseline, settings, narrator)
    return await _judged(question, prepared, tried, untried, settings, narrator, began_s)


class _Baseline:
    """The one baseline server of a run. Each candidate's experiment begins with one that was started for it."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm
        self.start_s = 0.0
        self._loaded = True  # by nothing yet, but it is not up either
        self._served: Served | None = None

    async def up(self, settings: Settings, narrator: Narrator) -> Served:
        """Start it, again where an experiment has run on it."""
        if self._served is not None and not self._loaded:
            return self._served
        narrator.phase("starting the baseline server")
        if self._served is not None:
            await self.arm.stop()
        began_s = time.monotonic()
        await bring_up(self.arm, settings.start_timeout_s)
        self.start_s = time.monotonic() - began_s
        await find_spinners((self.arm,))
        self._served, self._loaded = await served_model(self.arm.url, self.arm.headers), False
        return self._served

    def loaded(self) -> None:
        """An experiment is to run on it."""
        self._loaded = True


async def _try_all(
    prepared: Prepared, baseline: _Baseline, settings: Settings, narrator: Narrator
) -> tuple[list[Tried], dict[str, str]]:
    """Each candidate in turn, and why some were not tried. Only one of them is up at a time."""
    tried: list[Tried] = []
    untried: dict[str, str] = {}
    for place, one in enumerate(prepared.chosen):
        own = settings.of(one.technique)
        if settings.most > 1 and settings.resume and (before := tried_before(own.output)) is not None:
            tried.append(before)
            continue
        share = next_share(prepared, settings, tried, len(prepared.chosen) - place)
        if isinstance(share, str):
            untried[one.technique] = share
            narrator.found(f"{one.title}: {share}")
            continue
        served = await baseline.up(settings, narrator)
        baseline.loaded()
        try:
            done = await try_one(
                one,
                prepared,
                baseline.arm,
                served,
                own,
                share,
                narrator,
                lambda: keep(settings.output, prepared),
            )
        except DoesNotStart as failure:
            if settings.most == 1:
                raise
            untried[one.technique] = f"its server did not start: {failure}"
            narrator.found(f"{one.title} is left out: {untried[one.technique]}")
            continue
        if settings.most > 1:
            keep_tried(own.output, done)
            narrator.found(f"{one.title}: {count(len(done.trial.blocks), 'block')} measured")
        tried.append(done)
    if prepared.chosen and not tried:
        raise Unavailable("; ".join(f"{name}: {why}" for name, why in untried.items()))
    return tried, untried


async def _judged(
    question: Question,
    prepared: Prepared,
    tried: Sequence[Tried],
    untried: dict[str, str],
    settings: Settings,
    narrator: Narrator,
    began_s: float,
) -> Several:
    outcomes = await judge_all(tried, prepared, question.slo, settings, narrator) if tried else ()
    seconds = time.monotonic() - began_s
    return Several(
        base=msgspec.structs.replace(prepared.base, seconds=seconds),
        outcomes=tuple(
            msgspec.structs.replace(one, seconds=seconds, first_verdict_s=time.monotonic() - began_s)
            for one in outcomes
        ),
        untried=untried,
        budget=shared_budget(settings, prepared, tried),
        several=settings.most > 1,
    )
