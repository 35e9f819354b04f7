"""Everything that one decision between several candidates produced, and what it says of them together: which one to turn on."""

import math
from collections import defaultdict
from typing import Literal

import msgspec

from netgain.deciding.experiment.spending import amount
from netgain.deciding.experiment.statistics import CONFIDENCE, Effect
from netgain.deciding.experiment.verdict import Decision, change
from netgain.deciding.report.document import document_of, load_of
from netgain.deciding.report.outcome import Outcome
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.kind import Kind
from netgain.deciding.technique.promise import promised_on
from netgain.deciding.verdict.document import Deployable, Load
from netgain.wording import count

SCHEMA: Literal["netgain.candidates"] = "netgain.candidates"
VERSION: Literal[1] = 1
TOGETHER = (
    "They were not tried together: what one gains, another may take, so turn on one, and decide again on top of it."
)


class SharedBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A budget of device-seconds that all candidates shared. `devices`: that all arms of one held together."""

    asked_s: float
    expected_s: float | None
    spent_s: float
    devices: int
    exceeded: bool

    @property
    def says(self) -> str:
        expected = (
            "" if self.expected_s is None else f"; {amount(self.expected_s, self.devices)} had been expected of them"
        )
        return (
            f"The budget of {amount(self.asked_s, self.devices)} was {'exceeded' if self.exceeded else 'kept'}: all experiments "
            f"together took {amount(self.spent_s, self.devices)}{expected}."
        )


class Several(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the loop. `base` is what was known before anything was tried, `outcomes` has each candidate that was tried, in
    the order of what was predicted of them, `untried` those that were not, and why. `several` False: one was asked for."""

    base: Outcome
    outcomes: tuple[Outcome, ...]
    untried: dict[str, str]
    budget: SharedBudget | None
    several: bool


class CandidateLine(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate: predicted, measured (`effect` at the confidence that its `level` leaves) and judged. `folder` has its own
    verdict. `untried`: why it was not tried, and then nothing of it is known but the prediction."""

    technique: str
    title: str
    kind: Kind
    setting: dict[str, int | float | str] | None
    predicted: float | None
    folder: str | None = None
    decision: Decision | None = None
    void: bool = False
    headline: str | None = None
    reasons: tuple[str, ...] = ()
    effect: Effect | None = None
    confidence: float | None = None
    p: float | None = None
    level: float | None = None
    sweep_says: str | None = None
    untried: str | None = None


class CandidatesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Which of several candidates to turn on. `adopted`: the one to turn on (None: none of them), `others_adopted`: those that
    pay as well, tried by themselves. `together`: what all verdicts together may err. `lines`: those that were tried first.
    `not_applicable`: techniques that could not be tried here, and why. `caveats`: what must be known of one or of all."""

    schema: Literal["netgain.candidates"] = SCHEMA
    version: Literal[1] = VERSION
    netgain: str | None
    created: str
    seconds: float
    model: str
    engine: str
    engine_version: str | None
    load: Load
    form: str
    minimum_effect: float
    together: float
    adopted: str | None
    others_adopted: tuple[str, ...]
    headline: str
    says: tuple[str, ...]
    lines: tuple[CandidateLine, ...]
    not_applicable: dict[str, str]
    deploy: Deployable | None
    budget: SharedBudget | None
    caveats: tuple[str, ...]
    cannot_show: tuple[str, ...]
    machine: dict[str, str | int | float | None]

    @property
    def tried(self) -> tuple[CandidateLine, ...]:
        return tuple(one for one in self.lines if one.untried is None)

    @property
    def void(self) -> bool:
        """Whether no experiment proves anything."""
        return all(one.void for one in self.tried)


def candidates_document(found: Several) -> CandidatesDocument | None:
    """None when none was tried, so that there is nothing to compare."""
    if not found.outcomes:
        return None
    base, first = found.base, found.outcomes[0]
    lines = (*map(_line, found.outcomes), *(_untried(found, name, why) for name, why in found.untried.items()))
    paying = sorted((one for one in lines if one.decision == "adopt"), key=lambda one: -_gain(one))
    best = paying[0] if paying else None
    outcome = None if best is None else next(one for one in found.outcomes if one.chosen == best.technique)
    together = round(1.0 - CONFIDENCE, 12) if first.family is None else first.family.together
    tried = [one for one in lines if one.untried is None]
    version = base.context.get("netgain")
    return CandidatesDocument(
        netgain=None if version is None else str(version),
        created=base.created,
        seconds=base.seconds,
        model=base.asked.model,
        engine=base.engine,
        engine_version=base.engine_version,
        load=load_of(base.asked),
        form=base.asked.form,
        minimum_effect=base.asked.minimum_effect,
        together=together,
        adopted=None if best is None else best.technique,
        others_adopted=tuple(one.technique for one in paying[1:]),
        headline=_headline(best, tried),
        says=_says(paying, tried, together),
        lines=lines,
        not_applicable={one.technique: one.cannot_apply for one in base.hypotheses if one.cannot_apply},
        deploy=next(iter((outcome or first).deployable), None),  # without one that pays all advise the baseline
        budget=found.budget,
        caveats=_caveats(found.outcomes),
        cannot_show=tuple(dict.fromkeys(said for one in found.outcomes for said in one.cannot_show)),
        machine=base.context,
    )


def _caveats(outcomes: tuple[Outcome, ...]) -> tuple[str, ...]:
    """Those of each verdict, with its name where they are not of all."""
    by_caveat = defaultdict[str, list[str]](list)
    for one in outcomes:
        verdict = document_of(one)
        for says in () if verdict is None else dict.fromkeys(caveat.says for caveat in verdict.caveats):
            by_caveat[says].append(one.chosen or "")
    return tuple(
        says if len(names) == len(outcomes) else f"{', '.join(names)}: {says}" for says, names in by_caveat.items()
    )


def _line(one: Outcome) -> CandidateLine:
    assert one.analysis is not None
    assert one.chosen is not None
    verdict, place = one.analysis.verdict, one.family
    return CandidateLine(
        technique=one.chosen,
        title=one.title or one.chosen,
        kind=promised_on(CATALOGUE[one.chosen].kind, one.engine),
        setting=None if one.prediction is None else one.prediction.setting,
        predicted=None if one.prediction is None else one.prediction.speedup_e2e,
        folder=one.chosen,
        decision=verdict.decision,
        void=verdict.void,
        headline=verdict.headline,
        reasons=tuple(said for said in verdict.reasons if place is None or said != place.says),
        effect=verdict.primary,
        confidence=verdict.confidence if one.sweep is None else one.sweep.each,
        p=None if place is None else place.p,
        level=None if place is None else place.level,
        sweep_says=None if one.sweep is None else one.sweep.says,
    )


def _untried(found: Several, name: str, why: str) -> CandidateLine:
    hypothesis = next(one for one in found.base.hypotheses if one.technique == name)
    prediction = hypothesis.prediction
    return CandidateLine(
        technique=name,
        title=hypothesis.title,
        kind=promised_on(CATALOGUE[name].kind, found.base.engine),
        setting=None if prediction is None else prediction.setting,
        predicted=None if prediction is None else prediction.speedup_e2e,
        untried=why,
    )


def _gain(one: CandidateLine) -> float:
    return -math.inf if one.effect is None else one.effect.ratio


def _headline(best: CandidateLine | None, tried: list[CandidateLine]) -> str:
    if best is not None:
        gain = "" if best.effect is None else f": end-to-end time per request {change(best.effect.ratio)}"
        return f"Turn on {best.title}{gain}"
    if all(one.void for one in tried):
        return "Nothing is shown of any candidate: no experiment is valid"
    return f"Turn on none of the {count(len(tried), 'candidate')} that were tried: keep the baseline"


def _says(paying: list[CandidateLine], tried: list[CandidateLine], together: float) -> tuple[str, ...]:
    """What is known of them together, and what is not."""
    each = ", ".join(f"{one.technique} {one.level * 100:.3g} %" for one in tried if one.level is not None)
    said = []
    if each:
        said.append(
            f"{count(len(tried), 'candidate')} were tried, each against the baseline in an experiment of its own and held to a "
            f"level by Holm's method ({each}), so that all together err no more often than one may ({together * 100:.3g} %). "
            "Every interval is at its level."
        )
    if len(paying) > 1:
        names = " and ".join(one.technique for one in paying)
        said.append(
            f"{names} pay, each by itself; {paying[0].technique} has the largest gain, which as the largest of several is "
            f"flattered a little. {TOGETHER}"
        )
        close = [one.technique for one in paying[1:] if _overlap(paying[0].effect, one.effect)]
        if close:
            said.append(
                f"That {paying[0].technique} gains more than {' and '.join(close)} is not shown: the intervals overlap, "
                "and they were not compared with each other."
            )
    if len(paying) == 1 and len(tried) > 1:
        said.append(f"{paying[0].technique} is the only one that is shown to pay.")
    return tuple(said)


def _overlap(one: Effect | None, other: Effect | None) -> bool:
    if one is None or other is None or one.low is None or other.high is None:
        return True
    return other.high >= one.low
