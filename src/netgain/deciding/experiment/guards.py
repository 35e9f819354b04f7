"""What must not get worse while the primary metric improves: first tokens, worst gaps, failures, and the promised SLO."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation, clip_failures
from netgain.deciding.experiment.statistics import ALPHA, sign_flip_p
from netgain.measuring.client.quantile import weighted_quantile
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.workload.slo import SLO, Metric, Target

GuardState = Literal["held", "not shown", "breached"]
Weighted = list[tuple[float, float]]
RESAMPLES = 400


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much worse a tail may get where no SLO says it: ratio to the baseline, and a slack in seconds always allowed.

    Gaps get more room than first tokens: a verify step that commits one token costs more than a decode step, which is
    the price of the technique and visible in the tail by design.
    """

    ttft_p95_ratio: float = 1.2
    itl_p99_ratio: float = 2.0
    slack_s: float = 0.005


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both arms against its limit. `low` and `high` bound the candidate's (95 %, groups resampled).

    "breached": even `low` is above the limit and, where the limit is relative, the exact test over groups says that the
    candidate is worse; or there are more failures. "not shown": the value is above the limit but the data do not prove
    it, or it is unknown. "held": the value is within the limit. Seconds, or a share.
    """

    name: str
    baseline: float | None
    candidate: float | None
    low: float | None
    high: float | None
    limit: float | None
    basis: str
    state: GuardState


def judge_guards(
    observations: Sequence[Observation], slo: SLO | None, limits: Limits, seed: int, baseline: str = BASELINE
) -> tuple[Guard, ...]:
    """All guards: failures first, then the SLO's targets, then relative limits for tails that no target covers."""
    before = [observation for observation in observations if observation.arm == baseline]
    after = [observation for observation in observations if observation.arm == CANDIDATE]
    targets = () if slo is None else slo.targets
    guards = [_failures(before, after)]
    guards += [_promised(target, before, after, seed) for target in targets]
    promised = {target.metric for target in targets}
    if "ttft" not in promised:
        guards.append(_relative("ttft", 0.95, limits.ttft_p95_ratio, limits.slack_s, before, after, seed))
    if "itl" not in promised:
        guards.append(_relative("itl", 0.99, limits.itl_p99_ratio, limits.slack_s, before, after, seed))
    return tuple(guards)


def attainment(records: Iterable[ClientRecord], slo: SLO) -> float | None:
    """Share of requests that meet every target on their own; failures meet none. None when no request can be judged."""
    judged = [met for met in (slo.met_by(record) for record in records) if met is not None]
    return sum(judged) / len(judged) if judged else None


def population(metric: Metric) -> Callable[[ClientRecord], Weighted]:
    """The weighted values one request adds to a metric: one for itself, or for `itl` one per token after the first chunk.

    A failure adds an infinite value.
    """
    match metric:
        case "ttft":
            return lambda record: _one(record.ttft_s)
        case "tpot":
            return lambda record: _one(record.tpot_s)
        case "e2e":
            return lambda record: _one(record.e2e_s)
        case "itl":
            return lambda record: (
                [(gap, float(n)) for gap, n in record.token_gaps()] if record.ok else _one(record.e2e_s)
            )


def _one(value: float | None) -> Weighted:
    return [] if value is None else [(value, 1.0)]


def _failures(before: Sequence[Observation], after: Sequence[Observation]) -> Guard:
    rates = [sum(not seen.record.ok for seen in arm) / len(arm) if arm else None for arm in (before, after)]
    worse = rates[0] is not None and rates[1] is not None and rates[1] > rates[0]
    return Guard(
        name="failed share",
        baseline=rates[0],
        candidate=rates[1],
        low=None,
        high=None,
        limit=rates[0],
        basis="no more failures than the baseline",
        state="breached" if worse else "held",
    )


def _promised(target: Target, before: Sequence[Observation], after: Sequence[Observation], seed: int) -> Guard:
    values = population(target.metric)
    baseline = _tail(before, values, target.quantile)
    return _guard(
        f"{target.metric} p{target.quantile * 100:g}",
        values,
        target.quantile,
        baseline,
        after,
        target.limit_s,
        "SLO",
        seed,
    )


def _relative(
    metric: Metric,
    share: float,
    ratio: float,
    slack_s: float,
    before: Sequence[Observation],
    after: Sequence[Observation],
    seed: int,
) -> Guard:
    """The limit is never tighter than what the baseline's own repeats differ by: noise is no breach."""
    values = population(metric)
    baseline = _tail(before, values, share)
    limit, basis = None, "no baseline to compare with"
    if baseline is not None and np.isfinite(baseline):
        noise = _repeat_ratio(before, values, share)
        limit = max(baseline * max(ratio, noise), baseline + slack_s)
        basis = f"{ratio:g} x baseline, or +{slack_s * 1e3:g} ms"
        if noise > ratio:
            basis = f"{noise:.2f} x baseline, by which its own repeats differ"
    found = _guard(f"{metric} p{share * 100:g}", values, share, baseline, after, limit, basis, seed)
    if found.state == "breached" and _worse_p(before, after, values, share) > ALPHA:
        return msgspec.structs.replace(found, state="not shown")
    return found


def _worse_p(
    before: Sequence[Observation],
    after: Sequence[Observation],
    values: Callable[[ClientRecord], Weighted],
    share: float,
) -> float:
    """Exact one-sided test over groups that the candidate's tail is no longer than the baseline's."""
    logs = []
    for group in sorted({seen.group for seen in after}):
        pair = [_tail([seen for seen in arm if seen.group == group], values, share) for arm in (before, after)]
        if pair[0] is not None and pair[1] is not None:
            logs.append(clip_failures(np.log(np.maximum(np.array(pair, dtype=np.float64), 1e-9))))
    return sign_flip_p(np.array([after_log - before_log for before_log, after_log in logs], dtype=np.float64))


def _repeat_ratio(arm: Sequence[Observation], values: Callable[[ClientRecord], Weighted], share: float) -> float:
    """The arm's tail over its first blocks against the one over its last, the larger over the smaller; 1 if not repeated."""
    blocks: dict[int, list[int]] = {}
    for seen in arm:
        blocks.setdefault(seen.group, []).append(seen.block)
    tails = [
        _tail([seen for seen in arm if seen.block == end(blocks[seen.group])], values, share) for end in (min, max)
    ]
    known = [tail for tail in tails if tail is not None and np.isfinite(tail) and tail > 0.0]
    return max(known) / min(known) if len(known) == len(tails) else 1.0


def _guard(
    name: str,
    values: Callable[[ClientRecord], Weighted],
    share: float,
    baseline: float | None,
    after: Sequence[Observation],
    limit: float | None,
    basis: str,
    seed: int,
) -> Guard:
    candidate = _tail(after, values, share)
    low, high = _bounds(after, values, share, seed)
    state: GuardState = "not shown"
    if candidate is not None and limit is not None:
        if candidate <= limit:
            state = "held"
        elif low is not None and low > limit:
            state = "breached"
    return Guard(
        name=name, baseline=baseline, candidate=candidate, low=low, high=high, limit=limit, basis=basis, state=state
    )


def _tail(arm: Sequence[Observation], values: Callable[[ClientRecord], Weighted], share: float) -> float | None:
    return weighted_quantile([value for seen in arm for value in values(seen.record)], share)


def _bounds(
    arm: Sequence[Observation], values: Callable[[ClientRecord], Weighted], share: float, seed: int
) -> tuple[float | None, float | None]:
    """95 % bounds of a tail: whole groups are resampled, because the requests of a group share their noise."""
    pools: dict[int, Weighted] = {}
    for seen in arm:
        pools.setdefault(seen.group, []).extend(values(seen.record))
    pairs = [(value, weight, at) for at, pool in enumerate(pools.values()) for value, weight in pool]
    if len(pools) < 2 or not pairs:
        return None, None
    pairs.sort()
    ordered = np.array([value for value, _, _ in pairs])
    weights = np.array([weight for _, weight, _ in pairs])
    group = np.array([at for _, _, at in pairs])
    count = len(pools)
    times = np.random.default_rng(seed).multinomial(count, [1.0 / count] * count, size=RESAMPLES)
    cumulative = np.cumsum(weights * times[:, group], axis=1)
    kept = cumulative[:, -1] > 0.0
    places = np.argmax(cumulative >= share * (1 - 1e-12) * cumulative[:, -1:], axis=1)[kept]
    drawn = np.sort(ordered[places])
    if not len(drawn):
        return None, None
    return float(drawn[round(0.025 * (len(drawn) - 1))]), float(drawn[round(0.975 * (len(drawn) - 1))])
