"""From the observations of one paired experiment to its verdict, effects and waterfall. Pure: no clock, no server."""

import math
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from netgain.deciding.experiment.guards import Limits, attainment, judge_guards
from netgain.deciding.experiment.identity import compare_tokens, said
from netgain.deciding.experiment.observation import (
    BASELINE,
    CANDIDATE,
    CONTROL,
    Metric,
    Observation,
    pair,
    pair_values,
)
from netgain.deciding.experiment.statistics import Effect, mean_effect, median_effect, noise_floor
from netgain.deciding.experiment.verdict import (
    MINIMUM_EFFECT,
    Check,
    Evidence,
    Looped,
    Rollback,
    Verdict,
    judge,
    rollback_rule,
)
from netgain.deciding.experiment.waterfall import Waterfall, waterfall
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.quality.repetition import is_looped
from netgain.measuring.workload.slo import SLO

ROLLBACK_WINDOW = 100  # requests


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What the decision is held to, fixed before anything is measured."""

    promises_identity: bool
    slo: SLO | None = None
    limits: Limits = Limits()
    minimum_effect: float = MINIMUM_EFFECT
    seed: int = 0


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything computed from the observations. Effects are speedups: baseline / candidate.

    `a_a` compares the baseline's first block of a group with its last, `control` the baseline with its second start.
    `slo_met` is the share of requests that met the SLO, per arm.
    """

    verdict: Verdict
    e2e_median: Effect | None
    e2e_mean: Effect | None
    tpot_median: Effect | None
    ttft_median: Effect | None
    a_a: Effect | None
    control: Effect | None
    waterfall: Waterfall | None
    rollback: Rollback | None
    slo_met: dict[str, float | None] | None


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
    pairs = pair(observations, end_to_end)
    primary, mean = median_effect(pairs, terms.seed), mean_effect(pairs, terms.seed)
    tpot = median_effect(pair(observations, per_token), terms.seed)
    control = median_effect(pair(observations, end_to_end, BASELINE, CONTROL), terms.seed)
    identity = compare_tokens(observations)
    a_a, floor = _a_a(observations, terms.seed)
    if floor is not None and control is not None:
        floor = max(floor, abs(math.log(control.ratio)))
    guards = judge_guards(observations, terms.slo, terms.limits, terms.seed)
    verdict = judge(
        Evidence(
            primary=primary,
            mean=mean,
            noise_floor=floor,
            guards=guards,
            checks=tuple(checks),
            identity=identity,
            promises_identity=terms.promises_identity,
            looped=looped_prompts(observations, terms.seed),
            control=control,
        ),
        terms.minimum_effect,
    )
    return Analysis(
        verdict=verdict,
        e2e_median=primary,
        e2e_mean=mean,
        tpot_median=tpot,
        ttft_median=median_effect(pair(observations, first_token), terms.seed),
        a_a=a_a,
        control=control,
        waterfall=waterfall(observations),
        rollback=rollback_rule(_median(observations, per_token), tpot, floor, ROLLBACK_WINDOW),
        slo_met=None if terms.slo is None else _attainments(observations, terms.slo),
    )


def looped_prompts(observations: Sequence[Observation], seed: int) -> Looped:
    """Prompts answered with text that repeats itself in either arm, and the primary effect without them."""
    answers: dict[str, bool] = defaultdict(bool)
    for seen in observations:
        answer = said(seen.record)
        if answer is not None and seen.arm in (BASELINE, CANDIDATE):
            tokens = answer.split() if isinstance(answer, str) else answer
            answers[seen.record.item_id] |= is_looped(tokens)
    looped = tuple(sorted(item for item, loops in answers.items() if loops))
    kept = [seen for seen in observations if seen.record.item_id not in looped]
    without = median_effect(pair(kept, end_to_end), seed) if looped else None
    return Looped(prompts=len(answers), looped=looped, without=without)


def _a_a(observations: Sequence[Observation], seed: int) -> tuple[Effect | None, float | None]:
    """The baseline's first block of each group against its last: the effect that is certainly none, and its noise floor.

    One block against one block, where the experiment compares means of two: the floor is on the safe side.
    """
    blocks: dict[tuple[int, str], list[tuple[int, float]]] = defaultdict(list)
    for seen in observations:
        if seen.arm == BASELINE and seen.record.ok:
            blocks[seen.key].append((seen.block, seen.record.e2e_s))
    repeated = {key: sorted(values) for key, values in blocks.items() if len({block for block, _ in values}) > 1}
    pairs = pair_values(
        {key: [values[0][1]] for key, values in repeated.items()},
        {key: [values[-1][1]] for key, values in repeated.items()},
    )
    return median_effect(pairs, seed), noise_floor(pairs.log_ratios, pairs.groups)


def _median(observations: Sequence[Observation], metric: Metric) -> float | None:
    values = [metric(seen.record) for seen in observations if seen.arm == BASELINE]
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _attainments(observations: Sequence[Observation], slo: SLO) -> dict[str, float | None]:
    return {
        arm: attainment((seen.record for seen in observations if seen.arm == arm), slo) for arm in (BASELINE, CANDIDATE)
    }
