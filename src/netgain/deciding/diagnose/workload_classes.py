"""Seven classes of workload that speak for speculation or against it, each recognised from a measured figure or said to be
unknown. Several may hold; none of them decides."""

from collections.abc import Mapping

import msgspec

from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.prediction import Prediction
from netgain.ledger.stage import Stage
from netgain.wording import count

LOW_CONCURRENCY = 4  # requests at once
DECODES = 0.5  # share of end-to-end time
SHORT_OUTPUT = 16  # tokens
COPYING = 0.5  # accepted share of copied drafts from which output is called copying
MATCHED = 0.5  # share of first drafts that stand from which a draft is called well matched
FULL = 0.75  # marginal cost of a token in a step, as a share of a whole step, from which compute counts as full
COPIES = ("ngram", "suffix")
SPECULATION = (*COPIES, "draft", "heads")  # the techniques that the classes are about


class WorkloadClass(msgspec.Struct, frozen=True):
    """`holds` None: what it takes to know was not measured. `evidence` is the figure behind it, or what is missing."""

    workload: str
    attitude: str
    evidence: str
    holds: bool | None = True


def workload_classes(facts: Facts, predictions: Mapping[str, Prediction | None]) -> tuple[WorkloadClass, ...]:
    """All seven, in one order. `predictions` by technique; those that copy text say how much of the output can be copied."""
    return (
        _gaps_between_tokens(facts),
        _copying(predictions),
        _well_matched_draft(facts),
        _before_decoding(facts),
        _compute_full(facts),
        _short_output(facts),
        _room(facts),
    )


def _gaps_between_tokens(facts: Facts) -> WorkloadClass:
    decode = _decode_share(facts)
    holds = facts.concurrency <= LOW_CONCURRENCY and decode >= DECODES
    told = f"decode is {decode:.0%} of end-to-end time at {facts.concurrency} at once"
    return WorkloadClass("gaps between tokens at low concurrency", "candidate", told, holds)


def _copying(predictions: Mapping[str, Prediction | None]) -> WorkloadClass:
    name, attitude = "copying or structured output", "n-gram first"
    shares: dict[str, float] = {}
    for technique in COPIES:
        found = predictions.get(technique)
        if found is None or found.drafts is None:
            continue
        drafted, accepted = sum(found.drafts.drafted), sum(found.drafts.accepted)
        if drafted:
            shares[technique] = accepted / drafted
    if not shares:
        looked = any(predictions.get(technique) is not None for technique in COPIES)
        told = "no draft was found in the replayed text" if looked else "nothing was replayed"
        return WorkloadClass(name, attitude, told, False if looked else None)
    best = max(shares, key=lambda technique: shares[technique])
    told = "; ".join(f"{share:.0%} of replayed {technique} drafts are accepted" for technique, share in shares.items())
    return WorkloadClass(name, attitude if best == "ngram" else "suffix or n-gram first", told, shares[best] >= COPYING)


def _well_matched_draft(facts: Facts) -> WorkloadClass:
    name, attitude = "well-matched draft", "candidate"
    if facts.drafter is None:
        return WorkloadClass(name, attitude, "no draft was named (--draft)", None)
    if not facts.drafter.survival:
        return WorkloadClass(name, attitude, f"how often drafts of {facts.drafter.source} stand is not known", None)
    first = facts.drafter.survival[0]
    told = f"{first:.0%} of its first drafts stand ({facts.drafter.origin})"
    return WorkloadClass(name, attitude, told, first >= MATCHED)


def _before_decoding(facts: Facts) -> WorkloadClass:
    decode = _decode_share(facts)
    before = facts.decomposition.share(Stage.QUEUED, Stage.PREEMPTED, Stage.PREFILL)
    told = f"{before:.0%} of end-to-end time before decoding or waiting, against {decode:.0%} in decode"
    return WorkloadClass("prefill or queue dominates", "low priority", told, before > decode)


def _compute_full(facts: Facts) -> WorkloadClass:
    name, attitude = "compute already full", "careful"
    if facts.step_cost is None:
        told = f"what a second token per sequence costs is not known ({facts.step_cost_missing or 'not measured'})"
        return WorkloadClass(name, attitude, told, None)
    context = round(facts.decomposition.prompt_tokens)
    two, one = (facts.step_cost.verify(facts.concurrency, tokens, context) for tokens in (2, 1))
    if {"tokens", "batch"} & set(two.outside):
        return WorkloadClass(name, attitude, "steps of this batch were not measured with two tokens per sequence", None)
    marginal = two.seconds / one.seconds - 1.0
    return WorkloadClass(name, attitude, f"a second token per sequence adds {marginal:.0%} of a step", marginal >= FULL)


def _short_output(facts: Facts) -> WorkloadClass:
    tokens = facts.decomposition.output_tokens
    return WorkloadClass("very short output", "careful", f"{tokens:.0f} tokens on average", tokens < SHORT_OUTPUT)


def _room(facts: Facts) -> WorkloadClass:
    """Holds where requests lose their KV already, or would no longer fit together once the draft has taken its part."""
    name, attitude = "draft eats KV room", "careful"
    preempted = facts.decomposition.share(Stage.PREEMPTED)
    if preempted > 0.0:
        told = f"{preempted:.1%} of the time requests were preempted for want of KV memory, before any draft takes some"
        return WorkloadClass(name, attitude, told)
    if facts.drafter is None:
        return WorkloadClass(
            name, attitude, "copied drafts take no KV but their own few tokens, and no draft was named", False
        )
    taken, own, fits = facts.drafter.token_bytes, facts.kv_token_bytes, facts.kv_tokens
    if taken is None or not own or not fits:
        missing = "the draft takes of every token" if taken is None else "the server's KV cache holds"
        return WorkloadClass(name, attitude, f"what {missing} is not known", None)
    left = int(fits * own / (own + taken))
    needed = round(facts.concurrency * (facts.decomposition.prompt_tokens + facts.decomposition.output_tokens))
    held = count(facts.concurrency, "request")
    told = f"with it {left:,} of {fits:,} tokens fit, and {held} of this workload at once hold {needed:,}"
    return WorkloadClass(name, attitude, told, needed > left)


def _decode_share(facts: Facts) -> float:
    return facts.decomposition.share(Stage.DECODE, Stage.VERIFY, Stage.DRAFT)
