"""Candidate techniques for a measured baseline, ranked by predicted net gain: hypotheses to test, never a rule."""

from collections.abc import Mapping

import msgspec

from netgain.deciding.diagnose.workload_classes import SPECULATION, WorkloadClass, workload_classes
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.prediction import Prediction
from netgain.deciding.technique.protocol import Technique
from netgain.errors import UsageError


class Hypothesis(msgspec.Struct, frozen=True, kw_only=True):
    """One technique: predicted, or with the reason why it cannot be."""

    technique: str
    title: str
    relieves: str
    brings: str
    prediction: Prediction | None
    cannot_apply: str | None
    hints: tuple[WorkloadClass, ...] = ()


def rank(catalogue: Mapping[str, Technique], facts: Facts) -> tuple[Hypothesis, ...]:
    """All techniques, the highest predicted net gain first, those that cannot apply last."""
    found = [_consider(technique, facts) for technique in catalogue.values()]
    classes = workload_classes(facts, {one.technique: one.prediction for one in found})
    found = [msgspec.structs.replace(one, hints=_hints(catalogue[one.technique], classes)) for one in found]
    return tuple(
        sorted(found, key=lambda h: (h.prediction is None, -(h.prediction.net_s if h.prediction else 0.0), h.technique))
    )


def _consider(technique: Technique, facts: Facts) -> Hypothesis:
    reason = technique.cannot_apply(facts)
    prediction = technique.predict(facts) if reason is None else None
    if prediction is not None:
        try:
            technique.switch_on(facts.engine, prediction.setting)
        except UsageError as error:
            prediction, reason = None, str(error)
    return Hypothesis(
        technique=technique.name,
        title=technique.title,
        relieves=technique.relieves,
        brings=technique.brings,
        prediction=prediction,
        cannot_apply=reason,
    )


def _hints(technique: Technique, classes: tuple[WorkloadClass, ...]) -> tuple[WorkloadClass, ...]:
    """The classes that hold: they are about speculation, and about no other technique."""
    return tuple(one for one in classes if one.holds) if technique.name in SPECULATION else ()
