"""From the observations of one paired experiment to its verdict, effects and waterfall. Pure: no clock, no server."""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from netgain.deciding.experiment.guards import Limits, judge_guards
from netgain.deciding.experiment.identity import compare_tokens, said
from netgain.deciding.experiment.observation import (
    BASELINE,
    CANDIDATE,
    CONTROL,
    Metric,
    Observation,
    Pairs,
    pair,
    pair_values,
)
from netgain.deciding.experiment.power import spent
from netgain.deciding.experiment.rollback import Rollback, rollback_rule
from netgain.deciding.experiment.slo import SloOutcome, slo_outcome
from netgain.deciding.experiment.slo_curve import SloCurve, slo_curve
from netgain.deciding.experiment.stability import check_stability
from netgain.deciding.experiment.statistics import CONFIDENCE, Effect, mean_effect, median_effect
from netgain.deciding.experiment.tails import Tail, Tails
from netgain.deciding.experiment.unpaired import mean_effect_apart, median_effect_apart, samples
from netgain.deciding.experiment.verdict import (
    MINIMUM_EFFECT,
    Check,
    Evidence,
    Looped,
    Verdict,
    judge,
)
from netgain.deciding.experiment.waterfall import Waterfall, waterfall
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.quality.repetition import is_looped
from netgain.measuring.workload.slo import SLO
from netgain.measuring.workload.slo import Metric as SloMetric

TAILS = (0.95, 0.99)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What the decision is held to, fixed before anything is measured.

    `doubts`: why even a measured gain is not yet a reason to adopt. `losses`: what the candidate is shown to lose, which
    rejects it however fast it is. `paired` False: the arms were asked different prompts.
    `scope` and `advice` replace what the verdict would say of its reach and of what to do next.
    """

    promises_identity: bool
    slo: SLO | None = None
    limits: Limits = Limits()
    minimum_effect: float = MINIMUM_EFFECT
    confidence: float = CONFIDENCE
    seed: int = 0
    doubts: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    paired: bool = True
    scope: str | None = None
    advice: str | None = None


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything computed from the observations. Effects are speedups: baseline / candidate.

    `a_a` compares the baseline's first block of a group with its last, `control` the baseline with its second start.
    `paired` False: effects compare medians of arms that were asked different prompts. `tails` are the slow ends, in both arms.
    `slo`: the share of requests that met the SLO, before and after; `slo_curve`: the same were it tighter or looser.
    """

    verdict: Verdict
    e2e_median: Effect | None
    e2e_mean: Effect | None
    tpot_median: Effect | None
    ttft_median: Effect | None
    a_a: Effect | None
    control: Effect | None
    tails: tuple[Tail, ...]
    waterfall: Waterfall | None
    rollback: Rollback | None
    slo: SloOutcome | None
    paired: bool = True
    slo_curve: SloCurve | None = None


def end_to_end(record: ClientRecord) -> float | None:
    """Seconds from the scheduled time to the end; infinite for a failure."""
    return record.e2e_s


def per_token(record: ClientRecord) -> float | None:
    """Seconds per output token after the first chunk."""
    return record.tpot_s


def first_token(record: ClientRecord) -> float | None:
    """Seconds from the scheduled time to the first token."""
    return record.ttft_s


def analyse(observations: Sequence[Observation], terms: Terms, checks: Sequence[Check] = ()) -> Analysis:
    """Compute effects, noise and guards of a finished experiment and judge it."""
    seed, confidence = terms.seed, terms.confidence
    pairs = pair(observations, end_to_end)
    primary, mean = _median(observations, end_to_end, terms), mean_effect(pairs, seed, confidence)
    if not terms.paired:
        mean = mean_effect_apart(samples(observations, end_to_end), seed, confidence)
    tpot = _median(observations, per_token, terms)
    control = median_effect(pair(observations, end_to_end, BASELINE, CONTROL), seed, confidence)
    a_a = median_effect(_first_against_last(observations), seed)
    floor = _noise_floor(control)
    floor = _noise_floor(a_a) if floor is None else floor
    tails = functools.cache(lambda metric: Tails(observations, metric, seed))
    guards = judge_guards(observations, terms.slo, terms.limits, tails, alpha=(1.0 - confidence) / 2.0)
    verdict = judge(
        Evidence(
            primary=primary,
            mean=mean,
            noise_floor=floor,
            guards=guards,
            checks=(*checks, *check_stability(observations, pairs, primary, a_a, seed)),
            identity=compare_tokens(observations),
            promises_identity=terms.promises_identity,
            looped=looped_prompts(observations, terms),
            control=control,
            spent=spent(observations),
            confidence=confidence,
            doubts=terms.doubts,
            losses=terms.losses,
            paired=terms.paired,
            scope=terms.scope,
            advice=terms.advice,
        ),
        terms.minimum_effect,
    )
    return Analysis(
        verdict=verdict,
        e2e_median=primary,
        e2e_mean=mean,
        tpot_median=tpot,
        ttft_median=_median(observations, first_token, terms),
        a_a=a_a,
        control=control,
        tails=_tails(tails, confidence),
        waterfall=waterfall(observations),
        rollback=rollback_rule([observations], floor, guards),
        slo=None if terms.slo is None else slo_outcome(observations, terms.slo, confidence, seed),
        paired=terms.paired,
        slo_curve=None if terms.slo is None else slo_curve(observations, terms.slo),
    )


def looped_prompts(observations: Sequence[Observation], terms: Terms) -> Looped:
    """Prompts answered with text that repeats itself in either arm, and the primary effect without them."""
    answers: dict[str, bool] = defaultdict(bool)
    for seen in observations:
        answer = said(seen.record)
        if answer is not None and seen.record.text_sha256 is None and seen.arm in (BASELINE, CANDIDATE):
            tokens = answer.split() if isinstance(answer, str) else answer
            answers[seen.record.item_id] |= is_looped(tokens)
    looped = tuple(sorted(item for item, loops in answers.items() if loops))
    kept = [seen for seen in observations if seen.record.item_id not in looped]
    without = _median(kept, end_to_end, msgspec.structs.replace(terms, confidence=CONFIDENCE)) if looped else None
    return Looped(prompts=len(answers), looped=looped, without=without)


def _median(observations: Sequence[Observation], metric: Metric, terms: Terms) -> Effect | None:
    """Of the median prompt where prompts are paired, else of the medians of both arms."""
    if terms.paired:
        return median_effect(pair(observations, metric), terms.seed, terms.confidence)
    return median_effect_apart(samples(observations, metric), terms.seed, terms.confidence)


def _first_against_last(observations: Sequence[Observation]) -> Pairs:
    """The baseline's first block of each group against its last: the effect that is certainly none, but for drift."""
    blocks: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
    starts: dict[int, int] = {}
    for seen in observations:
        if seen.arm == BASELINE and seen.record.ok:
            blocks[seen.key].append((seen.block, seen.record.e2e_s))
            starts[seen.group] = seen.start
    repeated = {key: sorted(values) for key, values in blocks.items() if len({block for block, _ in values}) > 1}
    return pair_values(
        {key: [values[0][1]] for key, values in repeated.items()},
        {key: [values[-1][1]] for key, values in repeated.items()},
        starts,
    )


def _noise_floor(same: Effect | None) -> float | None:
    """How far a comparison of the baseline with itself lies, or may lie, from no change, as a log ratio."""
    if same is None or same.interval is None:
        return None
    return max(abs(math.log(end)) for end in same.interval)


def _tails(tails: Callable[[SloMetric], Tails], confidence: float) -> tuple[Tail, ...]:
    metrics: tuple[SloMetric, ...] = ("e2e", "ttft", "itl")
    found = [tails(metric).tail(share, confidence) for metric in metrics for share in TAILS]
    return tuple(tail for tail in found if tail.baseline_s is not None or tail.candidate_s is not None)
