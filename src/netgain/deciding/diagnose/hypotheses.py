"""Candidate techniques for a measured baseline, ranked by predicted net gain: hypotheses to test, never a rule."""

from collections.abc import Mapping

import msgspec

from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.prediction import Prediction
from netgain.deciding.technique.protocol import Technique
from netgain.errors import UsageError
from netgain.ledger.stage import Stage

SHORT_OUTPUT = 16  # tokens
COPYING = 0.5  # accepted share of drafts from which output is called copying
FULL = 0.75  # marginal cost of a token in a step, as a share of a whole step, from which compute counts as full


class Hint(msgspec.Struct, frozen=True):
    """A class of workload that was recognised, what it means for the technique, and the figure behind it."""

    workload: str
    attitude: str
    evidence: str


class Hypothesis(msgspec.Struct, frozen=True, kw_only=True):
    """One technique: predicted, or with the reason why it cannot be."""

    technique: str
    title: str
    relieves: str
    brings: str
    prediction: Prediction | None
    cannot_apply: str | None
    hints: tuple[Hint, ...]


def rank(catalogue: Mapping[str, Technique], facts: Facts) -> tuple[Hypothesis, ...]:
    """All techniques, the highest predicted net gain first, those that cannot apply last."""
    found = [_consider(technique, facts) for technique in catalogue.values()]
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
        hints=() if technique.kind == "lossy" else recognise(facts, prediction),
    )


def recognise(facts: Facts, prediction: Prediction | None) -> tuple[Hint, ...]:
    """Classes of workload that speak for or against speculation. Several may hold; none of them decides."""
    parts = facts.decomposition
    hints: list[Hint] = []
    decode = parts.share(Stage.DECODE, Stage.VERIFY, Stage.DRAFT)
    before = parts.share(Stage.QUEUED, Stage.PREEMPTED, Stage.PREFILL)
    if facts.concurrency <= 4 and decode >= 0.5:
        hints.append(
            Hint("gaps between tokens at low concurrency", "candidate", f"decode is {decode:.0%} of end-to-end time")
        )
    if prediction is not None and prediction.drafts is not None and prediction.drafts.drafted:
        drafted, accepted = sum(prediction.drafts.drafted), sum(prediction.drafts.accepted)
        if drafted and accepted / drafted >= COPYING:
            told = f"{accepted / drafted:.0%} of replayed drafts are accepted"
            hints.append(Hint("copying or structured output", "n-gram first", told))
    if before > decode:
        hints.append(Hint("prefill or queue dominates", "low priority", f"{before:.0%} against {decode:.0%} in decode"))
    marginal = _marginal(facts)
    if marginal is not None and marginal >= FULL:
        told = f"a second token per sequence adds {marginal:.0%} of a step"
        hints.append(Hint("compute already full", "careful", told))
    if parts.output_tokens < SHORT_OUTPUT:
        hints.append(Hint("very short output", "careful", f"{parts.output_tokens:.0f} tokens on average"))
    return tuple(hints)


def _marginal(facts: Facts) -> float | None:
    if facts.step_cost is None:
        return None
    context = round(facts.decomposition.prompt_tokens)
    two, one = (facts.step_cost.verify(facts.concurrency, tokens, context) for tokens in (2, 1))
    return None if {"tokens", "batch"} & set(two.outside) else two.seconds / one.seconds - 1.0
